/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a pickle to the tensors in it, and their names.
 *
 * Names. Keys of dicts, indices of lists and tuples, and attributes of objects
 * (a whole module that was saved: `_modules.0._parameters.weight`) are joined
 * with "."; dots in keys stay. A key that is an int is written as one, True,
 * False and None as such, any other as "[N]", the N-th of its dict, from 0. A
 * file that is but one tensor calls it "tensor". Names that so become equal
 * are told apart by the catalog (#2, #3, …). A tensor is left out if its name
 * is not UTF-8, has NULs, or is too long.
 *
 * What counts as a tensor is what torch._utils rebuilds from a storage and
 * strides, also through the wrappers of parameters and subclasses. Left out
 * are those whose bytes are not their values (conjugated or negated views,
 * quantised, sparse, nested, on no device), those of more than TENSOR_DIMS_MAX
 * dimensions, and what stands in sets and in arguments of other calls.
 *
 * Bounds. The graph may share nodes: then a tensor has several names, as it
 * had in the program that saved it. A few bytes can so describe names without
 * end; the catalog's memory bounds those, `steps` the rest, and a container in
 * which nothing was found is not entered again. Cycles are cut where they
 * close.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "providers/reader_check.h"
#include "providers/reader_torch.h"

#define DEPTH_MAX 200
#define STEPS_MAX 20000000
#define STEPS_TENSOR 4 /* what costs more than a step counts as some */
#define STEP_BYTES 16
#define WRAPPERS_MAX 8
#define KEY_MAX 32
/* The catalog may add a number. */
#define NAME_MAX_LEN (TENSOR_NAME_MAX - 16)

enum { BARREN = 1, OPEN = 2 };

struct walk {
	const struct pickle *p;
	const struct torch_storages *storages;
	struct catalog *to;
	uint8_t *marks; /* of nodes: BARREN, OPEN */
	uint64_t steps;
	unsigned depth;
	uint64_t n_found;
	bool too_long; /* some of the path did not fit in name */
	size_t len;
	char name[NAME_MAX_LEN];
};

/* ---- one tensor ---- */

/* ("storage", class, key, location, numel) */
struct storage {
	enum tensor_type type;
	uint64_t bytes;
	struct pickle_text key;
};

/* 1: a storage; 0: of a class that is not known; -ENOMSG: broken. */
static int storage_of(const struct pickle *p, uint32_t ref, struct storage *out)
{
	uint32_t id = pickle_call(p, ref);
	uint64_t numel;

	if (pickle_kind(p, ref) != PICKLE_PERSID ||
	    !pickle_is_text(p, pickle_at(p, id, 0), "storage") ||
	    !pickle_text(p, pickle_at(p, id, 2), &out->key) ||
	    !pickle_size_at(p, id, 4, &numel))
		return -ENOMSG;
	if (!torch_storage_class(p, pickle_at(p, id, 1), &out->type))
		return 0;
	if (__builtin_mul_overflow(numel, tensor_type_len(out->type),
				   &out->bytes))
		return -ENOMSG;
	return 1;
}

/* From the first to the end of the last element, in elements; 0 if there are
 * none. */
static int extent(const struct catalog_item *t, uint64_t *out)
{
	uint64_t last = 0, step;

	for (unsigned i = 0; i < t->n_dims; i++)
		if (!t->shape[i]) {
			*out = 0;
			return 0;
		}
	for (unsigned i = 0; i < t->n_dims; i++)
		if (__builtin_mul_overflow(t->shape[i] - 1, t->stride[i],
					   &step) ||
		    __builtin_add_overflow(last, step, &last))
			return -ENOMSG;
	return __builtin_add_overflow(last, 1, out) ? -ENOMSG : 0;
}

/* Put the elements from `first` on of a storage where they lie in the file. */
static int place(const struct walk *w, const struct storage *s, uint64_t first,
		 struct catalog_item *t)
{
	uint64_t each = tensor_type_len(t->type), len, off, end, at, room;
	int err = extent(t, &len);

	t->off = t->len = 0;
	t->swapped = false;
	if (err || !len)
		return err;
	if (__builtin_mul_overflow(first, each, &off) ||
	    __builtin_mul_overflow(len, each, &len) ||
	    __builtin_add_overflow(off, len, &end) || end > s->bytes)
		return -ENOMSG;
	err = w->storages->find(w->storages->arg, s->key, &at, &room);
	if (err)
		return err;
	if (s->bytes > room)
		return -ENOMSG;
	t->off = at + off;
	t->len = len;
	t->swapped = w->storages->swapped && each > 1;
	return 0;
}

/* Views whose elements are not what their bytes say. */
static bool is_altered(const struct pickle *p, uint32_t metadata)
{
	return pickle_is_true(p, pickle_get(p, metadata, "conj")) ||
	       pickle_is_true(p, pickle_get(p, metadata, "neg"));
}

/*
 * (storage, offset, size, stride, requires_grad, hooks), then of v2: metadata,
 * of v3: dtype, metadata; both may lack metadata. 1: *out is it; 0: a tensor
 * that is left out.
 */
static int rebuild_strided(const struct walk *w, uint32_t args, bool v3,
			   struct catalog_item *out)
{
	const struct pickle *p = w->p;
	struct storage s;
	unsigned n_strides;
	uint64_t first;
	int rc = storage_of(p, pickle_at(p, args, 0), &s);

	if (rc <= 0)
		return rc;
	out->type = s.type;
	if (v3 && !torch_dtype(p, pickle_at(p, args, 6), &out->type))
		return 0;
	if (is_altered(p, pickle_at(p, args, v3 ? 7 : 6)))
		return 0;
	if (!pickle_size_at(p, args, 1, &first))
		return -ENOMSG;
	rc = torch_dims(p, pickle_at(p, args, 2), out->shape, &out->n_dims);
	if (!rc)
		rc = torch_dims(p, pickle_at(p, args, 3), out->stride,
				&n_strides);
	if (rc)
		return rc == -ERANGE ? 0 : rc;
	if (n_strides != out->n_dims)
		return -ENOMSG;
	rc = place(w, &s, first, out);
	return rc ? rc : 1;
}

/* What a wrapper is round: its call and arguments replace the wrapper's. */
static bool unwrap(const struct pickle *p, uint32_t *call, uint32_t *args)
{
	uint32_t inner;

	if (pickle_is_global(p, *call, "torch._utils", "_rebuild_parameter") ||
	    pickle_is_global(p, *call, "torch._utils",
			     "_rebuild_parameter_with_state")) {
		inner = pickle_at(p, *args, 0);
		*call = pickle_call(p, inner);
		*args = pickle_args(p, inner);
		return true;
	}
	if (pickle_is_global(p, *call, "torch._tensor",
			     "_rebuild_from_type_v2") ||
	    pickle_is_global(p, *call, "torch._tensor", "_rebuild_from_type")) {
		*call = pickle_at(p, *args, 0);
		*args = pickle_at(p, *args, 2);
		return true;
	}
	return false;
}

/* 1: a tensor, *out is it; 0: none, or one that is left out. */
static int rebuild(const struct walk *w, uint32_t ref, struct catalog_item *out)
{
	const struct pickle *p = w->p;
	uint32_t call = pickle_call(p, ref), args = pickle_args(p, ref);

	for (int i = 0; i < WRAPPERS_MAX && unwrap(p, &call, &args); i++)
		;
	if (pickle_is_global(p, call, "torch._utils", "_rebuild_tensor_v2") ||
	    pickle_is_global(p, call, "torch._utils", "_rebuild_tensor"))
		return rebuild_strided(w, args, false, out);
	if (pickle_is_global(p, call, "torch._utils", "_rebuild_tensor_v3"))
		return rebuild_strided(w, args, true, out);
	return 0;
}

/* ---- names ---- */

static void name_append(struct walk *w, const char *key, size_t len)
{
	size_t dot = w->depth > 1;

	if (w->too_long || len + dot > sizeof(w->name) - w->len) {
		w->too_long = true;
		return;
	}
	if (dot)
		w->name[w->len++] = '.';
	memcpy(w->name + w->len, key, len);
	w->len += len;
	w->steps += len / STEP_BYTES;
}

/* The n-th key of a dict. */
static void name_append_key(struct walk *w, uint32_t key, uint64_t n)
{
	char buf[KEY_MAX];
	struct pickle_text text;
	int64_t value;

	if (pickle_text(w->p, key, &text)) {
		name_append(w, text.at, text.len);
		return;
	}
	if (pickle_int(w->p, key, &value))
		snprintf(buf, sizeof(buf), "%" PRId64, value);
	else if (pickle_kind(w->p, key) == PICKLE_BOOL)
		snprintf(buf, sizeof(buf), "%s",
			 pickle_is_true(w->p, key) ? "True" : "False");
	else if (pickle_kind(w->p, key) == PICKLE_NONE)
		snprintf(buf, sizeof(buf), "None");
	else
		snprintf(buf, sizeof(buf), "[%" PRIu64 "]", n);
	name_append(w, buf, strlen(buf));
}

static int add(struct walk *w, const struct catalog_item *t)
{
	w->n_found++;
	w->steps += STEPS_TENSOR + w->len / STEP_BYTES;
	if (!w->len && !w->too_long)
		return catalog_add(w->to, "tensor", strlen("tensor"), t);
	if (w->too_long || !utf8_valid(w->name, w->len))
		return 0;
	return catalog_add(w->to, w->name, w->len, t);
}

/* ---- the graph ---- */

static int visit(struct walk *w, uint32_t ref);

/* One level down, under a key (0: number n of a list). */
static int visit_under(struct walk *w, uint32_t key, uint64_t n, uint32_t ref)
{
	size_t len = w->len;
	bool too_long = w->too_long;
	char index[KEY_MAX];
	int err;

	if (++w->steps > STEPS_MAX)
		return -E2BIG;
	if (w->marks[ref] || pickle_kind(w->p, ref) < PICKLE_TUPLE)
		return 0;
	w->depth++;
	if (key) {
		name_append_key(w, key, n);
	} else {
		snprintf(index, sizeof(index), "%" PRIu64, n);
		name_append(w, index, strlen(index));
	}
	err = visit(w, ref);
	w->depth--;
	w->len = len;
	w->too_long = too_long;
	return err;
}

static int visit_list(struct walk *w, uint32_t list)
{
	struct pickle_iter it;
	uint32_t ref;
	int err = 0;

	pickle_iter_init(&it, w->p, list);
	for (uint64_t i = 0; !err && pickle_next(&it, &ref); i++)
		err = visit_under(w, 0, i, ref);
	return err;
}

static int visit_dict(struct walk *w, uint32_t dict)
{
	struct pickle_iter it;
	uint32_t key, ref;
	int err = 0;

	pickle_iter_init(&it, w->p, dict);
	for (uint64_t i = 0; !err && pickle_next(&it, &key); i++) {
		if (!pickle_next(&it, &ref))
			return -ENOMSG;
		err = visit_under(w, key, i, ref);
	}
	return err;
}

static int visit_container(struct walk *w, uint32_t ref)
{
	switch (pickle_kind(w->p, ref)) {
	case PICKLE_DICT:
		return visit_dict(w, ref);
	case PICKLE_LIST:
	case PICKLE_TUPLE:
		return visit_list(w, ref);
	default:
		return 0;
	}
}

/* Attributes: a dict, or that and the one of __slots__. */
static int visit_state(struct walk *w, uint32_t state)
{
	int err;

	if (pickle_kind(w->p, state) == PICKLE_DICT)
		return visit_dict(w, state);
	if (pickle_tuple_len(w->p, state) != 2)
		return 0;
	err = visit_container(w, pickle_at(w->p, state, 0));
	return err ? err : visit_container(w, pickle_at(w->p, state, 1));
}

/* TorchScript's typed lists: a call round a plain one. */
static bool is_typed_list(const struct pickle *p, uint32_t call)
{
	return pickle_is_global(p, call, "torch.jit._pickle",
				"restore_type_tag") ||
	       pickle_is_global(p, call, "torch.jit._pickle",
				"build_tensorlist");
}

/*
 * An object that is no tensor: what was put into it (an OrderedDict, whose own
 * attributes are of no interest then), or its attributes; a named tuple's
 * members are its class's arguments.
 */
static int visit_object(struct walk *w, uint32_t ref)
{
	const struct pickle *p = w->p;
	uint32_t items = pickle_items(p, ref);
	int err;

	if (items)
		return visit_container(w, items);
	if (pickle_kind(p, ref) == PICKLE_REDUCE) {
		if (is_typed_list(p, pickle_call(p, ref)))
			return visit_container(
				w, pickle_at(p, pickle_args(p, ref), 0));
		if (pickle_is_global(p, pickle_call(p, ref), "collections",
				     "OrderedDict"))
			return 0;
	} else {
		err = visit_list(w, pickle_args(p, ref));
		if (err)
			return err;
	}
	return visit_state(w, pickle_state(p, ref));
}

static int visit_node(struct walk *w, uint32_t ref)
{
	struct catalog_item t;
	int rc;

	if (pickle_kind(w->p, ref) < PICKLE_REDUCE)
		return visit_container(w, ref);
	rc = rebuild(w, ref, &t);
	if (rc > 0)
		return add(w, &t);
	return rc ? rc : visit_object(w, ref);
}

static int visit(struct walk *w, uint32_t ref)
{
	uint64_t n_found = w->n_found;
	int err;

	if (w->depth > DEPTH_MAX)
		return -E2BIG;
	w->marks[ref] = OPEN;
	err = visit_node(w, ref);
	w->marks[ref] = w->n_found == n_found ? BARREN : 0;
	return err;
}

int torch_walk(const struct pickle *p, const char *prefix,
	       const struct torch_storages *storages, struct catalog *to)
{
	struct walk *w = calloc(1, sizeof(*w));
	int err;

	if (!w)
		return -ENOMEM;
	w->p = p;
	w->storages = storages;
	w->to = to;
	w->marks = calloc(pickle_count(p), 1);
	if (!w->marks) {
		free(w);
		return -ENOMEM;
	}
	if (prefix) {
		w->depth = 1;
		name_append(w, prefix, strlen(prefix));
	}
	err = visit(w, pickle_root(p));
	free(w->marks);
	free(w);
	return err;
}
