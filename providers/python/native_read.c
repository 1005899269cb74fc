/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptfs._native, the reading side: the tensors of a checkpoint, for _read.py.
 * A file is opened once, when it is first needed, and its descriptor kept: what
 * was listed is what is read, also when the name has been given to another file
 * meanwhile.
 *
 * Threads: scan() makes a table for one; reading it is for any. The list of
 * files has a lock.
 */
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "native.h"
#include "providers/compiler.h"
#include "providers/reader_gather.h"
#include "providers/reader_table.h"

#define FOLDER "ckptfs.checkpoint"

struct file {
	struct file *next;
	char *name; /* within the folder */
	int fd;
	uint64_t size;
};

struct checkpoint {
	char *folder, *name;
	pthread_mutex_t lock;
	struct file *files; /* guarded by lock; what is in it stays */
	struct tensor_table *table;
};

static int file_read(void *arg, void *buf, size_t len, uint64_t off)
{
	const struct file *f = arg;

	for (size_t at = 0; at < len;) {
		ssize_t n = pread(f->fd, (char *)buf + at, len - at,
				  (off_t)(off + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EBADMSG; /* it has been cut since */
		at += (size_t)n;
	}
	return 0;
}

static void file_free(struct file *f)
{
	if (f->fd >= 0)
		close(f->fd);
	free(f->name);
	free(f);
}

static int file_look(struct file *f, const char *path)
{
	struct stat st;

	f->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (f->fd < 0 || fstat(f->fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EISDIR;
	f->size = (uint64_t)st.st_size;
	return 0;
}

static int file_open(const char *folder, const char *name, struct file **out)
{
	struct file *f = calloc(1, sizeof(*f));
	char *path = NULL;
	int r = -ENOMEM;

	if (!f)
		return -ENOMEM;
	f->fd = -1;
	f->name = strdup(name);
	if (f->name && asprintf(&path, "%s/%s", folder, name) >= 0) {
		r = file_look(f, path);
		free(path);
	}
	if (r)
		file_free(f);
	else
		*out = f;
	return r;
}

static struct file *file_find_locked(struct checkpoint *c, const char *name)
{
	for (struct file *f = c->files; f; f = f->next)
		if (!strcmp(f->name, name))
			return f;
	return NULL;
}

static int file_add_locked(struct checkpoint *c, const char *name,
			   struct file **out)
{
	struct file *f;
	int r = file_open(c->folder, name, &f);

	if (r)
		return r;
	f->next = c->files;
	c->files = f;
	*out = f;
	return 0;
}

/* name NULL: the file that was scanned. */
static int file_get(struct checkpoint *c, const char *name, struct file **out)
{
	struct file *f;
	int r = 0;

	if (!name)
		name = c->name;
	pthread_mutex_lock(&c->lock);
	f = file_find_locked(c, name);
	if (!f)
		r = file_add_locked(c, name, &f);
	pthread_mutex_unlock(&c->lock);
	if (!r)
		*out = f;
	return r;
}

static int open_source(void *arg, const char *name, struct reader_source *out)
{
	struct file *f;
	int r = file_get(arg, name, &f);

	if (r)
		return r;
	*out = (struct reader_source){
		.size = f->size,
		.read = file_read,
		.arg = f,
	};
	return 0;
}

static void checkpoint_free(struct checkpoint *c)
{
	if (!c)
		return;
	tensor_table_free(c->table);
	while (c->files) {
		struct file *f = c->files;

		c->files = f->next;
		file_free(f);
	}
	pthread_mutex_destroy(&c->lock);
	free(c->folder);
	free(c->name);
	free(c);
}

static void checkpoint_freep(struct checkpoint **c)
{
	checkpoint_free(*c);
}

/* Without the GIL. */
static int checkpoint_scan(struct checkpoint *c)
{
	CLEANUP(tensor_table_freep) struct tensor_table *found = NULL;
	struct reader_source source;
	int r = open_source(c, NULL, &source);

	if (!r)
		r = tensor_table_scan(&source, c->name, &found);
	if (!r)
		r = tensor_table_resolve(found, open_source, c, &c->table);
	return r;
}

/* ---- for Python ----------------------------------------------------------- */

static void capsule_free(PyObject *capsule)
{
	checkpoint_free(PyCapsule_GetPointer(capsule, FOLDER));
}

static PyObject *native_scan(PyObject *self, PyObject *args)
{
	CLEANUP(checkpoint_freep) struct checkpoint *c = NULL;
	const char *folder, *name;
	PyObject *capsule;
	int r;

	(void)self;
	if (!PyArg_ParseTuple(args, "yy", &folder, &name))
		return NULL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return PyErr_NoMemory();
	pthread_mutex_init(&c->lock, NULL);
	c->folder = strdup(folder);
	c->name = strdup(name);
	if (!c->folder || !c->name)
		return PyErr_NoMemory();
	Py_BEGIN_ALLOW_THREADS;
	r = checkpoint_scan(c);
	Py_END_ALLOW_THREADS;
	if (r)
		return PyLong_FromLong(r);
	capsule = PyCapsule_New(c, FOLDER, capsule_free);
	if (capsule)
		c = NULL;
	return capsule;
}

static PyObject *shape_of(const struct tensor *t)
{
	PyObject *shape = PyTuple_New(t->n_dims);

	for (unsigned i = 0; shape && i < t->n_dims; i++) {
		PyObject *n = PyLong_FromUnsignedLongLong(t->shape[i]);

		if (!n || PyTuple_SetItem(shape, i, n) < 0)
			Py_CLEAR(shape);
	}
	return shape;
}

/* (file or None, off) where the image is one run of bytes, else None. */
static PyObject *run_of(const struct tensor *t)
{
	const struct tensor_piece *piece;

	if (!tensor_len(t) || !tensor_is_run(t, &piece))
		Py_RETURN_NONE;
	return Py_BuildValue("(yK)", piece->file ? piece->file : "",
			     (unsigned long long)piece->off);
}

static PyObject *describe(const struct tensor *t)
{
	PyObject *name = PyUnicode_DecodeUTF8(
		t->name, (Py_ssize_t)strlen(t->name), "surrogateescape");
	PyObject *shape = shape_of(t), *run = run_of(t);

	if (!name || !shape || !run) {
		Py_XDECREF(name);
		Py_XDECREF(shape);
		Py_XDECREF(run);
		return NULL;
	}
	return Py_BuildValue("(NssNKNi)", name, tensor_type_name(t->type),
			     t->type_name ? t->type_name : "", shape,
			     (unsigned long long)tensor_len(t), run,
			     (int)t->shared);
}

static PyObject *native_list(PyObject *self, PyObject *capsule)
{
	struct checkpoint *c = PyCapsule_GetPointer(capsule, FOLDER);
	size_t n = c ? tensor_table_count(c->table) : 0;
	PyObject *list = c ? PyList_New((Py_ssize_t)n) : NULL;

	(void)self;
	for (size_t i = 0; list && i < n; i++) {
		PyObject *one = describe(tensor_table_at(c->table, i));

		if (!one || PyList_SetItem(list, (Py_ssize_t)i, one) < 0)
			Py_CLEAR(list);
	}
	return list;
}

static PyObject *native_format(PyObject *self, PyObject *capsule)
{
	struct checkpoint *c = PyCapsule_GetPointer(capsule, FOLDER);

	(void)self;
	return c ? PyUnicode_FromString(tensor_table_format(c->table)) : NULL;
}

/* A descriptor of the checkpoint's own, which stays open as long. */
static PyObject *native_file(PyObject *self, PyObject *args)
{
	PyObject *capsule;
	const char *name;
	struct checkpoint *c;
	struct file *f;
	int r;

	(void)self;
	if (!PyArg_ParseTuple(args, "Oy", &capsule, &name))
		return NULL;
	c = PyCapsule_GetPointer(capsule, FOLDER);
	if (!c)
		return NULL;
	r = file_get(c, *name ? name : NULL, &f);
	return PyLong_FromLong(r ? r : f->fd);
}

static PyObject *native_gather(PyObject *self, PyObject *args)
{
	PyObject *capsule, *target;
	Py_ssize_t i;
	struct checkpoint *c;
	Py_buffer buffer;
	int r = -ERANGE;

	(void)self;
	if (!PyArg_ParseTuple(args, "OnO", &capsule, &i, &target))
		return NULL;
	c = PyCapsule_GetPointer(capsule, FOLDER);
	if (!c || PyObject_GetBuffer(target, &buffer, PyBUF_WRITABLE) < 0)
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	if (i >= 0 && (size_t)i < tensor_table_count(c->table))
		r = tensor_gather(tensor_table_at(c->table, (size_t)i),
				  open_source, c, buffer.buf,
				  (size_t)buffer.len, 0);
	Py_END_ALLOW_THREADS;
	PyBuffer_Release(&buffer);
	return PyLong_FromLong(r);
}

static PyMethodDef methods[] = {
	{ "scan", native_scan, METH_VARARGS, NULL },
	{ "list", native_list, METH_O, NULL },
	{ "format", native_format, METH_O, NULL },
	{ "file", native_file, METH_VARARGS, NULL },
	{ "gather", native_gather, METH_VARARGS, NULL },
	{ NULL, NULL, 0, NULL },
};

int native_read_add(PyObject *module)
{
	return PyModule_AddFunctions(module, methods);
}
