/* SPDX-License-Identifier: Apache-2.0 */
/* activation.c - activations of feed-forward blocks: the names they are published under, and what
 * they compute. The first name of each is the one we write. */
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "model/model.h"
#include "model/model_config.h"

static const struct {
    const char *name;
    ts_activation activation;
} table[] = { { "silu", TS_ACTIVATION_SILU },
              { "swish", TS_ACTIVATION_SILU },
              { "gelu", TS_ACTIVATION_GELU },
              { "gelu_python", TS_ACTIVATION_GELU },
              { "gelu_new", TS_ACTIVATION_GELU_TANH },
              { "gelu_pytorch_tanh", TS_ACTIVATION_GELU_TANH },
              { "gelu_python_tanh", TS_ACTIVATION_GELU_TANH },
              { "gelu_fast", TS_ACTIVATION_GELU_TANH },
              { "gelu_accurate", TS_ACTIVATION_GELU_TANH },
              { "quick_gelu", TS_ACTIVATION_QUICK_GELU },
              { "relu", TS_ACTIVATION_RELU },
              { "relu2", TS_ACTIVATION_RELU2 },
              { "sigmoid", TS_ACTIVATION_SIGMOID },
              { "tanh", TS_ACTIVATION_TANH },
              { "linear", TS_ACTIVATION_LINEAR } };

enum { NAME_COUNT = sizeof table / sizeof table[0] };

ts_status tsi_activation_parse(const char *path, const char *name, int32_t *out)
{
    const char *names[NAME_COUNT + 1] = { NULL };
    for (int i = 0; i < NAME_COUNT; i++) {
        names[i] = table[i].name;
        *out = (int32_t)table[i].activation;
        if (strcmp(name, table[i].name) == 0) return TS_OK;
    }
    *out = TS_ACTIVATION_DEFAULT;
    const char *near = tsi_text_nearest(name, names);
    return TSI_FAIL(TS_ERR_ARG, "%s: the activation \"%s\" is not known%s%s%s", path, name,
                    near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static ts_activation activation_of(const ts_model_config *c)
{
    if (c->activation != TS_ACTIVATION_DEFAULT) return (ts_activation)c->activation;
    return c->family == TS_MODEL_GPT2 ? TS_ACTIVATION_GELU_TANH : TS_ACTIVATION_SILU;
}

const char *tsi_activation_name(const ts_model_config *c)
{
    ts_activation wanted = activation_of(c);
    for (int i = 0; i < NAME_COUNT; i++)
        if (table[i].activation == wanted) return table[i].name;
    return "silu";
}

const char *tsi_model_activation_word(const ts_model_config *c)
{
    static const char *const words[] = { [TS_ACTIVATION_DEFAULT] = "silu",
                                         [TS_ACTIVATION_SILU] = "silu",
                                         [TS_ACTIVATION_GELU] = "gelu",
                                         [TS_ACTIVATION_GELU_TANH] = "gelu_tanh",
                                         [TS_ACTIVATION_QUICK_GELU] = "quick_gelu",
                                         [TS_ACTIVATION_RELU] = "relu",
                                         [TS_ACTIVATION_RELU2] = "relu2",
                                         [TS_ACTIVATION_SIGMOID] = "sigmoid",
                                         [TS_ACTIVATION_TANH] = "tanh",
                                         [TS_ACTIVATION_LINEAR] = "linear" };
    return words[activation_of(c)];
}

ts_tensor *tsi_model_activate(const ts_model *model, ts_tensor *x)
{
    switch (activation_of(&model->config)) {
    case TS_ACTIVATION_DEFAULT:
    case TS_ACTIVATION_SILU:
        return ts_silu(x);
    case TS_ACTIVATION_GELU:
        return ts_gelu(x);
    case TS_ACTIVATION_GELU_TANH:
        return ts_gelu_tanh(x);
    case TS_ACTIVATION_QUICK_GELU:
        return ts_mul(x, ts_sigmoid(ts_mul_scalar(x, 1.702)));
    case TS_ACTIVATION_RELU:
        return ts_relu(x);
    case TS_ACTIVATION_RELU2:
        return ts_square(ts_relu(x));
    case TS_ACTIVATION_SIGMOID:
        return ts_sigmoid(x);
    case TS_ACTIVATION_TANH:
        return ts_tanh(x);
    case TS_ACTIVATION_LINEAR:
        return x;
    }
    return NULL;
}

ts_tensor *tsi_model_gate(const ts_model *model, ts_tensor *gate, ts_tensor *up)
{
    ts_activation activation = activation_of(&model->config);
    bool silu = activation == TS_ACTIVATION_DEFAULT || activation == TS_ACTIVATION_SILU;
    return silu ? ts_swiglu(gate, up) : ts_mul(tsi_model_activate(model, gate), up);
}
