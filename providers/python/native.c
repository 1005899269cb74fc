/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptfs._native: libckpt for the Python files beside it, and for nobody else.
 * They describe what is to be captured as nested tuples ("parts"); here those
 * become providers:
 *
 *	("host", address, len)               borrowed; the caller keeps it alive
 *	("copy", address, len)               copied now
 *	("bytes", bytes)                     kept until released
 *	("call", callable)                   an object: callable() -> bytes
 *	("slow", device, address, len)       borrowed, of an imitated device
 *	("cuda", address, len, device, stream)
 *	("check", callable)                  no bytes: callable() -> 0 or -errno,
 *	                                     when all have been read
 *	("group", align, [part, ...])
 *	("torch", root, [(key, part), ...], part)
 *	("safetensors", [(name, type, shape, part), ...], [(key, value), ...])
 *
 * Errors of libckpt are returned as numbers, not raised: who calls knows the
 * file and the words for it. Exceptions are for wrong arguments only, and
 * Closed for a capture whose engine is.
 *
 * Threads: no call that may wait holds the GIL, and the engine's threads take
 * it only in serialise(), check and release, where they hold no lock. Calls
 * that are without the GIL are counted: close() frees when the last is out.
 */
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/queue.h>
#include <unistd.h>

#include "native.h"
#include "providers/ckpt.h"
#include "providers/composite.h"
#include "providers/compiler.h"
#include "providers/layout.h"

#define ENGINE "ckptfs.engine"
#define CAPTURE "ckptfs.capture"
#define DEVICE "ckptfs.device"

struct capture {
	LIST_ENTRY(capture) link;
	struct engine *engine;
	struct ckpt_capture *cap; /* NULL: its engine is closed */
};

struct engine {
	struct ckpt *ck; /* NULL: closed; guarded by the GIL, as the list */
	pid_t pid;
	LIST_HEAD(, capture) captures;
	pthread_mutex_t lock;
	pthread_cond_t idle;
	unsigned n_calls; /* that use a capture; guarded by lock */
};

static PyObject *closed_error;

/* ---- Python objects that the engine holds -------------------------------- */

static void drop(PyObject *object)
{
	PyGILState_STATE state;

	if (!object)
		return;
	state = PyGILState_Ensure();
	Py_DECREF(object);
	PyGILState_Release(state);
}

static void drop_arg(void *arg)
{
	drop(arg);
}

/* ("bytes", b) */
static struct ckpt_provider *bytes_new(PyObject *bytes)
{
	char *at;
	Py_ssize_t len;

	if (PyBytes_AsStringAndSize(bytes, &at, &len) < 0)
		return NULL;
	Py_INCREF(bytes);
	return ckpt_memory_owned(at, (size_t)len, drop_arg, bytes);
}

/* ("call", f) */
struct call {
	PyObject *callable;
	PyObject *bytes;
};

static int call_now(struct call *c, const void **bytes, size_t *len)
{
	char *at;
	Py_ssize_t n;

	c->bytes = PyObject_CallNoArgs(c->callable);
	if (!c->bytes || PyBytes_AsStringAndSize(c->bytes, &at, &n) < 0) {
		PyErr_Clear(); /* the callable has kept it for its capture */
		return -EINVAL;
	}
	*bytes = at;
	*len = (size_t)n;
	return 0;
}

static int call_serialise(void *arg, const void **bytes, size_t *len)
{
	PyGILState_STATE state = PyGILState_Ensure();
	int r = call_now(arg, bytes, len);

	PyGILState_Release(state);
	return r;
}

static void call_free(void *arg)
{
	struct call *c = arg;

	drop(c->bytes);
	drop(c->callable);
	free(c);
}

static struct ckpt_provider *call_new(PyObject *callable)
{
	struct call *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	Py_INCREF(callable);
	c->callable = callable;
	return ckpt_object(call_serialise, call_free, c);
}

/* ("check", f): no bytes, only the question whether others were left alone */
struct check {
	struct ckpt_provider base;
	PyObject *callable;
};

static uint64_t check_size(const struct ckpt_provider *p)
{
	(void)p;
	return 0;
}

static int check_next(struct ckpt_provider *p, enum ckpt_kind kind, size_t max,
		      struct ckpt_chunk *out)
{
	(void)p;
	(void)kind;
	(void)max;
	(void)out;
	return 0;
}

static int check_now(PyObject *callable)
{
	PyObject *result = PyObject_CallNoArgs(callable);
	long r = result ? PyLong_AsLong(result) : -EINVAL;

	if (PyErr_Occurred()) {
		PyErr_WriteUnraisable(callable);
		r = -EINVAL;
	}
	Py_XDECREF(result);
	return (int)r;
}

static int check_check(struct ckpt_provider *p)
{
	PyGILState_STATE state = PyGILState_Ensure();
	int r = check_now(CONTAINER_OF(p, struct check, base)->callable);

	PyGILState_Release(state);
	return r;
}

static void check_release(struct ckpt_provider *p)
{
	struct check *c = CONTAINER_OF(p, struct check, base);

	drop(c->callable);
	free(c);
}

static const struct ckpt_provider_ops check_ops = {
	.name = "check",
	.size = check_size,
	.next = check_next,
	.check = check_check,
	.release = check_release,
};

static struct ckpt_provider *check_new(PyObject *callable)
{
	struct check *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->base.ops = &check_ops;
	Py_INCREF(callable);
	c->callable = callable;
	return &c->base;
}

/* ---- parts ---------------------------------------------------------------
 * A maker returns 0 and the provider, or -errno; with an exception set the
 * number does not matter.
 */
static int part_new(PyObject *part, struct ckpt_provider **out);

static int give(struct ckpt_provider *p, struct ckpt_provider **out)
{
	if (!p)
		return -ENOMEM;
	*out = p;
	return 0;
}

static int parse_memory(PyObject *part, const void **at, size_t *len)
{
	const char *name;
	unsigned long long address;
	Py_ssize_t n;

	if (!PyArg_ParseTuple(part, "sKn", &name, &address, &n))
		return -EINVAL;
	*at = (const void *)(uintptr_t)address;
	*len = (size_t)n;
	return 0;
}

static int host_part(PyObject *part, struct ckpt_provider **out)
{
	const void *at;
	size_t len;
	int r = parse_memory(part, &at, &len);

	return r ? r : give(ckpt_memory(at, len), out);
}

static int copy_part(PyObject *part, struct ckpt_provider **out)
{
	const void *at;
	size_t len;
	int r = parse_memory(part, &at, &len);

	return r ? r : give(ckpt_memory_copied(at, len), out);
}

static int one_object(PyObject *part, PyObject **out)
{
	const char *name;

	return PyArg_ParseTuple(part, "sO", &name, out) ? 0 : -EINVAL;
}

static int bytes_part(PyObject *part, struct ckpt_provider **out)
{
	PyObject *bytes;
	int r = one_object(part, &bytes);

	return r ? r : give(bytes_new(bytes), out);
}

static int call_part(PyObject *part, struct ckpt_provider **out)
{
	PyObject *callable;
	int r = one_object(part, &callable);

	return r ? r : give(call_new(callable), out);
}

static int check_part(PyObject *part, struct ckpt_provider **out)
{
	PyObject *callable;
	int r = one_object(part, &callable);

	return r ? r : give(check_new(callable), out);
}

static int slow_part(PyObject *part, struct ckpt_provider **out)
{
	const char *name;
	PyObject *capsule;
	unsigned long long address;
	Py_ssize_t len;
	struct ckpt_slow_device *device;

	if (!PyArg_ParseTuple(part, "sOKn", &name, &capsule, &address, &len))
		return -EINVAL;
	device = PyCapsule_GetPointer(capsule, DEVICE);
	if (!device)
		return -EINVAL;
	return give(ckpt_slow(device, (const void *)(uintptr_t)address,
			      (size_t)len),
		    out);
}

static int cuda_part(PyObject *part, struct ckpt_provider **out)
{
	const char *name;
	unsigned long long address, stream;
	Py_ssize_t len;
	int device;

	if (!PyArg_ParseTuple(part, "sKniK", &name, &address, &len, &device,
			      &stream))
		return -EINVAL;
	return ckpt_cuda((const void *)(uintptr_t)address, (size_t)len, device,
			 (void *)(uintptr_t)stream, out);
}

static int fill_group(PyObject *list, struct ckpt_provider *group)
{
	Py_ssize_t n = PyList_Size(list);
	int r = n < 0 ? -EINVAL : 0;

	for (Py_ssize_t i = 0; i < n && !r; i++) {
		struct ckpt_provider *child = NULL;

		r = part_new(PyList_GetItem(list, i), &child);
		if (!r)
			r = ckpt_composite_add(group, child);
	}
	return r;
}

static int group_part(PyObject *part, struct ckpt_provider **out)
{
	const char *name;
	Py_ssize_t align;
	PyObject *list;
	struct ckpt_provider *group;
	int r;

	if (!PyArg_ParseTuple(part, "snO", &name, &align, &list))
		return -EINVAL;
	group = ckpt_composite((size_t)align);
	if (!group)
		return -ENOMEM;
	r = fill_group(list, group);
	if (r) {
		group->ops->release(group);
		return r;
	}
	*out = group;
	return 0;
}

static int fill_torch(struct ckpt_torch *t, PyObject *list, PyObject *pickle)
{
	Py_ssize_t n = PyList_Size(list);
	struct ckpt_provider *p = NULL;
	int r = n < 0 ? -EINVAL : 0;

	for (Py_ssize_t i = 0; i < n && !r; i++) {
		const char *key;
		PyObject *part;

		if (!PyArg_ParseTuple(PyList_GetItem(list, i), "sO", &key,
				      &part))
			return -EINVAL;
		r = part_new(part, &p);
		if (!r)
			r = ckpt_torch_storage(t, key, p);
	}
	if (!r)
		r = part_new(pickle, &p);
	return r ? r : ckpt_torch_pickle(t, p);
}

static int torch_part(PyObject *part, struct ckpt_provider **out)
{
	const char *name, *root;
	PyObject *list, *pickle;
	struct ckpt_torch *t;
	int r;

	if (!PyArg_ParseTuple(part, "ssOO", &name, &root, &list, &pickle))
		return -EINVAL;
	r = ckpt_torch_new(root, &t);
	if (r)
		return r;
	r = fill_torch(t, list, pickle);
	if (r) {
		ckpt_torch_free(t);
		return r;
	}
	return ckpt_torch_finish(t, out);
}

#define DIMS_MAX 64

static int parse_shape(PyObject *shape, uint64_t dims[DIMS_MAX], size_t *n_dims)
{
	Py_ssize_t n = PyTuple_Size(shape);

	if (n < 0 || n > DIMS_MAX)
		return -EINVAL;
	for (Py_ssize_t i = 0; i < n; i++) {
		dims[i] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(shape, i));
		if (PyErr_Occurred())
			return -EINVAL;
	}
	*n_dims = (size_t)n;
	return 0;
}

static int add_tensor(struct ckpt_safetensors *st, PyObject *tensor)
{
	const char *name, *type;
	PyObject *shape, *part;
	uint64_t dims[DIMS_MAX];
	size_t n_dims = 0;
	struct ckpt_provider *p;
	int r;

	if (!PyArg_ParseTuple(tensor, "ssOO", &name, &type, &shape, &part))
		return -EINVAL;
	r = parse_shape(shape, dims, &n_dims);
	if (!r)
		r = part_new(part, &p);
	return r ? r : ckpt_safetensors_add(st, name, type, dims, n_dims, p);
}

static int add_metadata(struct ckpt_safetensors *st, PyObject *pairs)
{
	Py_ssize_t n = PyList_Size(pairs);
	int r = n < 0 ? -EINVAL : 0;

	for (Py_ssize_t i = 0; i < n && !r; i++) {
		const char *key, *value;

		if (!PyArg_ParseTuple(PyList_GetItem(pairs, i), "ss", &key,
				      &value))
			return -EINVAL;
		r = ckpt_safetensors_metadata(st, key, value);
	}
	return r;
}

static int safetensors_part(PyObject *part, struct ckpt_provider **out)
{
	const char *name;
	PyObject *list, *pairs;
	struct ckpt_safetensors *st;
	Py_ssize_t n;
	int r;

	if (!PyArg_ParseTuple(part, "sOO", &name, &list, &pairs))
		return -EINVAL;
	n = PyList_Size(list);
	r = n < 0 ? -EINVAL : ckpt_safetensors_new(&st);
	if (r)
		return r;
	for (Py_ssize_t i = 0; i < n && !r; i++)
		r = add_tensor(st, PyList_GetItem(list, i));
	if (!r)
		r = add_metadata(st, pairs);
	if (r) {
		ckpt_safetensors_free(st);
		return r;
	}
	return ckpt_safetensors_finish(st, out);
}

static const struct {
	const char *name;
	int (*make)(PyObject *part, struct ckpt_provider **out);
} makers[] = {
	{ "host", host_part },   { "copy", copy_part },
	{ "bytes", bytes_part }, { "call", call_part },
	{ "slow", slow_part },   { "cuda", cuda_part },
	{ "check", check_part }, { "group", group_part },
	{ "torch", torch_part }, { "safetensors", safetensors_part },
};

static int part_new(PyObject *part, struct ckpt_provider **out)
{
	PyObject *name = PyTuple_GetItem(part, 0); /* raises if it is none */

	if (!name)
		return -EINVAL;
	for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++)
		if (PyUnicode_CompareWithASCIIString(name, makers[i].name) == 0)
			return makers[i].make(part, out);
	PyErr_Format(PyExc_ValueError, "no part is called %R", name);
	return -EINVAL;
}

/* Bytes of a part whose size is known, or -errno: it is made and let go. */
static int length_of(PyObject *part, uint64_t *out)
{
	struct ckpt_provider *root = ckpt_composite(1), *p;
	int r = root ? part_new(part, &p) : -ENOMEM;

	if (!r)
		r = ckpt_composite_add(root, p);
	if (!r)
		r = composite_place(root, out);
	if (root)
		root->ops->release(root);
	return r;
}

static PyObject *native_length(PyObject *self, PyObject *part)
{
	uint64_t len = 0;
	int r = length_of(part, &len);

	(void)self;
	if (PyErr_Occurred())
		return NULL;
	return r ? PyLong_FromLong(r) : PyLong_FromUnsignedLongLong(len);
}

/* ---- engines and devices -------------------------------------------------- */

static void enter(struct engine *e)
{
	pthread_mutex_lock(&e->lock);
	e->n_calls++;
	pthread_mutex_unlock(&e->lock);
}

static void leave(struct engine *e)
{
	pthread_mutex_lock(&e->lock);
	if (--e->n_calls == 0)
		pthread_cond_broadcast(&e->idle);
	pthread_mutex_unlock(&e->lock);
}

/* Nobody comes in any more. */
static void engine_detach(struct engine *e)
{
	struct capture *c;

	while ((c = LIST_FIRST(&e->captures))) {
		LIST_REMOVE(c, link);
		c->cap = NULL;
	}
}

/* ckpt_close() frees the captures, so it waits for whoever is in there. */
static int engine_close(struct engine *e)
{
	struct ckpt *ck = MOVE(e->ck);
	int r;

	engine_detach(e);
	if (!ck)
		return 0;
	Py_BEGIN_ALLOW_THREADS;
	pthread_mutex_lock(&e->lock);
	while (e->n_calls)
		pthread_cond_wait(&e->idle, &e->lock);
	pthread_mutex_unlock(&e->lock);
	r = ckpt_close(ck);
	Py_END_ALLOW_THREADS;
	return r;
}

/* A child of fork() leaves the parent's alone: its locks are in an unknown
 * state, and what it holds is the parent's. */
static void engine_free(PyObject *capsule)
{
	struct engine *e = PyCapsule_GetPointer(capsule, ENGINE);

	if (e->pid != getpid()) {
		engine_detach(e);
		return;
	}
	(void)!engine_close(e);
	pthread_cond_destroy(&e->idle);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

/* Owns ck. */
static PyObject *engine_new(struct ckpt *ck)
{
	struct engine *e = calloc(1, sizeof(*e));
	PyObject *capsule = e ? PyCapsule_New(e, ENGINE, engine_free) : NULL;

	if (!capsule) {
		(void)!ckpt_close(ck);
		free(e);
		return PyErr_NoMemory();
	}
	e->ck = ck;
	e->pid = getpid();
	LIST_INIT(&e->captures);
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->idle, NULL);
	return capsule;
}

static PyObject *native_open(PyObject *self, PyObject *args)
{
	struct ckpt_options options = { .options_len = sizeof(options) };
	unsigned long long chunk, staging, budget;
	struct ckpt *ck;
	int abort_at_exit, r;

	(void)self;
	if (!PyArg_ParseTuple(args, "KKKp", &chunk, &staging, &budget,
			      &abort_at_exit))
		return NULL;
	options.chunk_len = (size_t)chunk;
	options.staging_len = (size_t)staging;
	options.budget_len = budget;
	options.at_exit = abort_at_exit ? CKPT_EXIT_ABORT : CKPT_EXIT_DRAIN;
	r = ckpt_open(&options, &ck);
	return r ? PyLong_FromLong(r) : engine_new(ck);
}

/* Twice does no harm. */
static PyObject *native_close(PyObject *self, PyObject *capsule)
{
	struct engine *e = PyCapsule_GetPointer(capsule, ENGINE);

	(void)self;
	return e ? PyLong_FromLong(engine_close(e)) : NULL;
}

static PyObject *native_device(PyObject *self, PyObject *arg)
{
	unsigned long long rate = PyLong_AsUnsignedLongLong(arg);
	struct ckpt_slow_device *device;
	int r;

	(void)self;
	if (PyErr_Occurred())
		return NULL;
	r = ckpt_slow_device_new(rate, &device);
	if (r)
		return PyLong_FromLong(r);
	return PyCapsule_New(device, DEVICE, NULL);
}

/* ---- captures ------------------------------------------------------------- */

static void capsule_free(PyObject *capsule)
{
	struct capture *c = PyCapsule_GetPointer(capsule, CAPTURE);
	struct engine *e = c->engine;
	struct ckpt_capture *cap = MOVE(c->cap);

	if (cap)
		LIST_REMOVE(c, link);
	free(c);
	if (!cap || e->pid != getpid())
		return;
	enter(e);
	Py_BEGIN_ALLOW_THREADS;
	ckpt_capture_free(cap);
	leave(e);
	Py_END_ALLOW_THREADS;
}

static struct capture *capture_of(PyObject *capsule)
{
	struct capture *c = PyCapsule_GetPointer(capsule, CAPTURE);

	if (c && (!c->cap || c->engine->pid != getpid())) {
		PyErr_SetString(closed_error, "the capture is closed");
		return NULL;
	}
	return c;
}

/* For a call without the GIL, until leave(*e). */
static struct ckpt_capture *capture_enter(PyObject *capsule, struct engine **e)
{
	struct capture *c = capture_of(capsule);

	if (!c)
		return NULL;
	*e = c->engine;
	enter(*e);
	return c->cap;
}

static int begin(struct ckpt *ck, const char *path, PyObject *part,
		 struct ckpt_capture **out)
{
	struct ckpt_capture *cap;
	struct ckpt_provider *p;
	int r = part_new(part, &p);

	if (r)
		return r;
	r = ckpt_begin(ck, path, &cap);
	if (r) {
		p->ops->release(p);
		return r;
	}
	r = ckpt_add(cap, p);
	if (r)
		ckpt_capture_free(cap);
	else
		*out = cap;
	return r;
}

static PyObject *capsule_new(struct engine *e, struct ckpt_capture *cap)
{
	struct capture *c = calloc(1, sizeof(*c));
	PyObject *capsule = c ? PyCapsule_New(c, CAPTURE, capsule_free) : NULL;

	if (!capsule) {
		ckpt_capture_free(cap);
		free(c);
		return PyErr_NoMemory();
	}
	c->engine = e;
	c->cap = cap;
	LIST_INSERT_HEAD(&e->captures, c, link);
	return capsule;
}

static PyObject *native_begin(PyObject *self, PyObject *args)
{
	PyObject *capsule, *part;
	const char *path;
	struct ckpt_capture *cap;
	struct engine *e;
	int r;

	(void)self;
	if (!PyArg_ParseTuple(args, "OyO", &capsule, &path, &part))
		return NULL;
	e = PyCapsule_GetPointer(capsule, ENGINE);
	if (!e)
		return NULL;
	if (!e->ck) {
		PyErr_SetString(closed_error, "the engine is closed");
		return NULL;
	}
	r = begin(e->ck, path, part, &cap);
	if (PyErr_Occurred())
		return NULL;
	return r ? PyLong_FromLong(r) : capsule_new(e, cap);
}

static PyObject *native_submit(PyObject *self, PyObject *capsule)
{
	struct engine *e;
	struct ckpt_capture *cap = capture_enter(capsule, &e);
	int r;

	(void)self;
	if (!cap)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = ckpt_submit(cap);
	leave(e);
	Py_END_ALLOW_THREADS;
	return PyLong_FromLong(r);
}

static PyObject *native_wait(PyObject *self, PyObject *args)
{
	PyObject *capsule;
	struct ckpt_capture *cap;
	struct engine *e;
	int level, timeout_ms, r;

	(void)self;
	if (!PyArg_ParseTuple(args, "Oii", &capsule, &level, &timeout_ms))
		return NULL;
	cap = capture_enter(capsule, &e);
	if (!cap)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = ckpt_wait(cap, (enum ckpt_level)level, timeout_ms);
	leave(e);
	Py_END_ALLOW_THREADS;
	return PyLong_FromLong(r);
}

static PyObject *native_cancel(PyObject *self, PyObject *capsule)
{
	struct engine *e;
	struct ckpt_capture *cap = capture_enter(capsule, &e);

	(void)self;
	if (!cap)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	ckpt_cancel(cap);
	leave(e);
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

static PyObject *native_error(PyObject *self, PyObject *capsule)
{
	struct capture *c = capture_of(capsule);
	const char *text;

	(void)self;
	if (!c)
		return NULL;
	text = ckpt_error(c->cap);
	return PyUnicode_DecodeFSDefault(text);
}

static PyObject *native_stats(PyObject *self, PyObject *capsule)
{
	struct capture *c = capture_of(capsule);
	struct ckpt_stats s;

	(void)self;
	if (!c)
		return NULL;
	ckpt_get_stats(c->cap, &s);
	return Py_BuildValue(
		"(KKKKKLLLLKii)", (unsigned long long)s.bytes[0],
		(unsigned long long)s.bytes[1], (unsigned long long)s.bytes[2],
		(unsigned long long)s.bytes[3], (unsigned long long)s.file_len,
		(long long)s.submitted_ns, (long long)s.first_filled_ns,
		(long long)s.captured_ns, (long long)s.complete_ns,
		(unsigned long long)s.staged_max, s.on_ckptfs, s.mapped);
}

/* ---- the module ----------------------------------------------------------- */

static PyMethodDef methods[] = {
	{ "length", native_length, METH_O, NULL },
	{ "open", native_open, METH_VARARGS, NULL },
	{ "close", native_close, METH_O, NULL },
	{ "device", native_device, METH_O, NULL },
	{ "begin", native_begin, METH_VARARGS, NULL },
	{ "submit", native_submit, METH_O, NULL },
	{ "wait", native_wait, METH_VARARGS, NULL },
	{ "cancel", native_cancel, METH_O, NULL },
	{ "error", native_error, METH_O, NULL },
	{ "stats", native_stats, METH_O, NULL },
	{ NULL, NULL, 0, NULL },
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT,
	.m_name = "ckptfs._native",
	.m_doc = "libckpt, for the files of this package only.",
	.m_size = -1,
	.m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void);

PyMODINIT_FUNC PyInit__native(void)
{
	PyObject *native = PyModule_Create(&module);

	closed_error = PyErr_NewException("ckptfs._native.Closed", NULL, NULL);
	if (native && (!closed_error ||
		       PyModule_AddObjectRef(native, "Closed", closed_error) ||
		       native_read_add(native) < 0))
		Py_CLEAR(native);
	return native;
}
