#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the files of this directory:  python3 make.py     (needs the package `tokenizers`; 0.23.3 made these)

  hand_bytes.json, hand_pieces.json   tiny vocabularies whose tokens a person can derive; the expected ids stand in
                                      tests/unit/data_tokenizer.c and come from pencil and paper
  gpt2 llama3 qwen llama2 meta .json  small BPE models of each published kind, trained on examples/data/tales.txt
  steps.json                          one with pre-tokenizers in a row
  vectors.jsonl                       texts with the ids and the decoded text that `tokenizers` gives for them
Training breaks ties by chance, so a new run may give other models; the vectors are always those of the files.
"""
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
TALES = open(os.path.join(HERE, "../../../examples/data/tales.txt")).read()
FOREIGN = "Größe naïve café Привет мир 你好世界 안녕하세요 مرحبا हिन्दी ½"
MARK = "\u2581"


def save(name, value):
    with open(os.path.join(HERE, name), "w") as f:
        json.dump(value, f, ensure_ascii=False, separators=(",", ":"))
        f.write("\n")


def letters():
    """The letter of each byte."""
    plain = list(range(0x21, 0x7F)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    others = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]


def added(i, text):
    return {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}


def hand_bytes():
    vocab = {c: i for i, c in enumerate(letters())}
    merges = ["h e", "l l", "ll o", "he llo", "Ġ w", "o r", "Ġw or", "Ġ t", "t h"]
    for merge in merges:
        vocab[merge.replace(" ", "")] = len(vocab)
    save("hand_bytes.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [added(len(vocab), "<|endoftext|>")],
        "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
                  "end_of_word_suffix": "", "fuse_unk": False, "vocab": vocab, "merges": merges}})


DECODER = {"type": "Sequence", "decoders": [
    {"type": "Replace", "pattern": {"String": MARK}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
NORMALIZER = {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": MARK}, {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]}
TEMPLATE = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
SPECIALS = ["<unk>", "<s>", "</s>"]
BYTES = ["<0x%02X>" % b for b in range(256)]


def hand_pieces():
    names = SPECIALS + BYTES + [MARK, "a", "b", "c", "ab", MARK + "a", MARK + "ab", MARK + MARK]
    merges = [["a", "b"], [MARK, "a"], [MARK, "ab"], [MARK, MARK]]
    save("hand_pieces.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(i, t) for i, t in enumerate(SPECIALS)], "normalizer": NORMALIZER, "pre_tokenizer": None,
        "post_processor": TEMPLATE, "decoder": DECODER,
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
                  "vocab": {t: i for i, t in enumerate(names)}, "merges": merges}})


def lines():
    yield from TALES[:60000].split("\n")
    for _ in range(20):
        yield FOREIGN


def finish(name, tokenizer):
    save(name, json.loads(tokenizer.to_str()))


def byte_level(name, pre, vocab=700, normalizer=None, ignore_merges=False, post=None, tokens=()):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    if normalizer is not None:
        t.normalizer = normalizer
    t.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|endoftext|>"]))
    for token in tokens:
        (t.add_special_tokens if token.special else t.add_tokens)([token])
    if post is not None:
        t.post_processor = post
    finish(name, t)


def pieces(name, normalizer, pre, decoder, byte_fallback):
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=byte_fallback, fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIALS + (BYTES if byte_fallback else []), show_progress=False,
        limit_alphabet=70))
    value = json.loads(t.to_str())
    value["added_tokens"] = [added(i, s) for i, s in enumerate(SPECIALS)]
    value.update(normalizer=normalizer, pre_tokenizer=pre, decoder=decoder, post_processor=TEMPLATE)
    save(name, value)


def models_of_each_kind():
    llama3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
              r"|\s*[\r\n]+|\s+(?!\S)|\s+")

    def split(pattern):
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level("gpt2.json", pre_tokenizers.ByteLevel(add_prefix_space=True))
    byte_level("llama3.json", split(llama3), ignore_merges=True,
               post=processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]),
               tokens=[AddedToken("<|eot_id|>", special=True, normalized=False)])
    byte_level("qwen.json", split(llama3.replace("{1,3}", "")), normalizer=normalizers.NFC(), tokens=[
        AddedToken("<|im_start|>", special=True, normalized=False), AddedToken("<think>", normalized=True),
        AddedToken("word", single_word=True, normalized=False), AddedToken("<l>", lstrip=True, normalized=False),
        AddedToken("<r>", rstrip=True, normalized=False), AddedToken("  ", normalized=False)])
    byte_level("steps.json", pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\s*"), "merged_with_previous"), pre_tokenizers.Split("e", "merged_with_next"),
        pre_tokenizers.Split(Regex(r"[a-m]+"), "contiguous", invert=True), pre_tokenizers.Split("!", "removed"),
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    pieces("llama2.json", NORMALIZER, None, DECODER, True)
    meta = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": True}
    pieces("meta.json", None, meta, meta, False)


BITS = ["'s", "'LL", "'\u017f", "  ", "\n\n", " \n", "\r\n", "\t", "12345", "١٢٣", "½", "word", "words", "<|endoftext|>",
        "<|im_start|>", "<think>", "<l>", " <l>  ", "  <r> ", "<s>", "</s>", "<0x41>", MARK, "don't", "e\u0301",
        "\u1100\u1161\u11a8", "...", "\u00a0", "\u3000", "\u180e", "\u200d", "😀👍🏽", "你好", "naïve", "Привет", " "]


def texts(dice):
    yield ""
    yield " "
    yield "hello world"
    for _ in range(25):
        at = dice.randrange(len(TALES) - 200)
        yield TALES[at:at + dice.randrange(1, 120)]
    for _ in range(45):
        yield "".join(dice.choice(BITS) for _ in range(dice.randrange(1, 12)))


def vectors():
    with open(os.path.join(HERE, "vectors.jsonl"), "w") as out:
        for name in ["hand_bytes", "hand_pieces", "gpt2", "llama3", "qwen", "steps", "llama2", "meta"]:
            t = Tokenizer.from_file(os.path.join(HERE, name + ".json"))
            dice = random.Random(name)
            for text in texts(dice):
                ids = t.encode(text, add_special_tokens=False).ids
                row = {"tokenizer": name, "text": text, "ids": ids, "with_specials": t.encode(text).ids,
                       "decoded": t.decode(ids, skip_special_tokens=False), "without_specials": t.decode(ids)}
                out.write(json.dumps(row, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    hand_bytes()
    hand_pieces()
    models_of_each_kind()
    vectors()
