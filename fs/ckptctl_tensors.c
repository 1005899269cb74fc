/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tensors`: what tensors a file or directory holds, and their sums by dtype
 * and by prefix of their dotted names. One JSON value is made of it all; the
 * text is a rendering of that.
 */
#include <stdio.h>
#include <string.h>

#include "fs/ckptctl_scan.h"

#define DEPTH 2
#define NAME_COLUMN 60

/* ---- collecting ------------------------------------------------------- */

/* A tensor's bytes count once, however many share them. */
static uint64_t counted(const struct tensor *t)
{
	return t->shared ? 0 : tensor_len(t);
}

static void sum_up(json_t *sums, const char *key, size_t len, uint64_t bytes)
{
	char *name = strndup(key, len);
	json_t *sum;

	if (name)
		ctl_make_utf8(name);
	sum = name ? json_object_get(sums, name) : NULL;
	if (name && !sum) {
		sum = json_pack("{s:I,s:I}", "tensors", (json_int_t)0, "bytes",
				(json_int_t)0);
		if (json_object_set_new(sums, name, sum))
			sum = NULL;
	}
	if (sum) {
		json_t *n = json_object_get(sum, "tensors");
		json_t *b = json_object_get(sum, "bytes");

		json_integer_set(n, json_integer_value(n) + 1);
		json_integer_set(b, json_integer_value(b) + (json_int_t)bytes);
	}
	free(name);
}

/* "a.b.c" counts for "a" and "a.b" (depth 2). */
static void sum_prefixes(json_t *sums, const char *name, unsigned depth,
			 uint64_t bytes)
{
	const char *dot = name;

	while (depth-- && (dot = strchr(dot, '.'))) {
		sum_up(sums, name, (size_t)(dot - name), bytes);
		dot++;
	}
}

static const char *type_of(const struct tensor *t)
{
	return t->type == TENSOR_PACKED && t->type_name
		       ? t->type_name
		       : tensor_type_name(t->type);
}

static json_t *tensor_json(const struct tensor *t)
{
	json_t *shape = json_array();

	for (unsigned i = 0; i < t->n_dims; i++)
		json_array_append_new(shape,
				      json_integer((json_int_t)t->shape[i]));
	return json_pack("{s:o,s:o,s:o,s:I,s:b}", "name",
			 ctl_json_name(t->name), "dtype",
			 ctl_json_name(type_of(t)), "shape", shape, "bytes",
			 (json_int_t)tensor_len(t), "shared", (int)t->shared);
}

struct sums {
	json_t *dtypes, *prefixes, *total;
	unsigned depth;
};

/* NULL: no memory. */
static json_t *file_json(const struct ctl_file *f, const struct sums *sums)
{
	json_t *list = json_array();

	for (size_t i = 0; i < tensor_table_count(f->table); i++) {
		const struct tensor *t = tensor_table_at(f->table, i);
		const char *type = type_of(t);

		if (f->covered[i])
			continue;
		if (json_array_append_new(list, tensor_json(t))) {
			json_decref(list);
			return NULL;
		}
		sum_up(sums->dtypes, type, strlen(type), counted(t));
		sum_up(sums->total, "total", 5, counted(t));
		sum_prefixes(sums->prefixes, t->name, sums->depth, counted(t));
	}
	return json_pack("{s:o,s:s,s:o}", "path", ctl_json_name(f->rel),
			 "format", tensor_table_format(f->table), "tensors",
			 list);
}

/* NULL: no memory. */
static json_t *scan_json(const struct ctl_scan *scan, unsigned depth)
{
	struct sums sums = { .dtypes = json_object(),
			     .prefixes = json_object(),
			     .total = json_object(),
			     .depth = depth };
	json_t *files = json_array();
	int err = 0;

	sum_up(sums.total, "total", 5, 0);
	json_integer_set(json_object_get(json_object_get(sums.total, "total"),
					 "tensors"),
			 0);
	for (size_t i = 0; i < scan->n && !err; i++)
		if (!scan->files[i].hidden)
			err = json_array_append_new(
				files, file_json(&scan->files[i], &sums));
	json_object_set_new(sums.total, "files", files);
	json_object_set_new(sums.total, "by_dtype", sums.dtypes);
	json_object_set_new(sums.total, "by_prefix", sums.prefixes);
	if (err)
		json_decref(sums.total);
	return err ? NULL : sums.total;
}

/* ---- showing ---------------------------------------------------------- */

static const char *text_in(const json_t *o, const char *key)
{
	return json_string_value(json_object_get(o, key));
}

static uint64_t number_in(const json_t *o, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(o, key));
}

static void print_padded(const char *name, int width)
{
	int len = (int)strlen(name);

	ctl_print_name(name);
	printf("%*s", len < width ? width - len : 0, "");
}

static void print_shape(const json_t *shape)
{
	char text[512] = "[";
	size_t n = 1, i;
	const json_t *dim;

	json_array_foreach(shape, i, dim)
	{
		if (n + 24 > sizeof(text))
			break;
		n += (size_t)snprintf(text + n, sizeof(text) - n, "%s%lld",
				      i ? ", " : "",
				      (long long)json_integer_value(dim));
	}
	snprintf(text + n, sizeof(text) - n, "]");
	printf("%-20s", text);
}

static int name_width(const json_t *tensors)
{
	const json_t *t;
	size_t i, most = 8;

	json_array_foreach(tensors, i, t)
	{
		size_t len = strlen(text_in(t, "name"));

		most = len > most ? len : most;
	}
	return most < NAME_COLUMN ? (int)most : NAME_COLUMN;
}

static void print_file(const json_t *file)
{
	const json_t *tensors = json_object_get(file, "tensors"), *t;
	int width = name_width(tensors);
	char bytes[CTL_BYTES_LEN];
	size_t i;

	if (*text_in(file, "path")) {
		ctl_print_name(text_in(file, "path"));
		printf(" (%s)\n", text_in(file, "format"));
	}
	json_array_foreach(tensors, i, t)
	{
		print_padded(text_in(t, "name"), width);
		printf("  %-14s ", text_in(t, "dtype"));
		print_shape(json_object_get(t, "shape"));
		printf(" %9s%s\n", ctl_bytes(number_in(t, "bytes"), bytes),
		       json_is_true(json_object_get(t, "shared")) ? "  shared"
								  : "");
	}
	putchar('\n');
}

static void print_sum(const char *name, const json_t *sum, int indent)
{
	char bytes[CTL_BYTES_LEN];

	printf("%*s", indent, "");
	print_padded(name, 40 - indent);
	printf(" %9s  %llu\n", ctl_bytes(number_in(sum, "bytes"), bytes),
	       (unsigned long long)number_in(sum, "tensors"));
}

static int dots_in(const char *s)
{
	int n = 0;

	while ((s = strchr(s, '.'))) {
		n++;
		s++;
	}
	return n;
}

/* Parents first, each followed by its own: keys in the order of their parts. */
static int by_parts(const void *a, const void *b)
{
	const unsigned char *x = *(const unsigned char *const *)a;
	const unsigned char *y = *(const unsigned char *const *)b;

	while (*x && *x == *y) {
		x++;
		y++;
	}
	/* The dot sorts before all else. */
	return (*x == '.' ? 1 : *x) - (*y == '.' ? 1 : *y);
}

static void print_prefixes(const json_t *sums)
{
	size_t n = json_object_size(sums), i = 0;
	CLEANUP(free_p) const char **keys = calloc(n + 1, sizeof(*keys));
	const char *key;
	const json_t *sum;

	if (!keys || !n)
		return;
	json_object_foreach((json_t *)sums, key, sum) keys[i++] = key;
	qsort(keys, n, sizeof(*keys), by_parts);
	printf("%-40s %9s  tensors\n", "prefix", "size");
	for (i = 0; i < n; i++)
		print_sum(keys[i], json_object_get(sums, keys[i]),
			  2 * dots_in(keys[i]));
	putchar('\n');
}

static void print_all(const json_t *all)
{
	const json_t *files = json_object_get(all, "files"), *file, *sum;
	const char *key;
	size_t i;

	json_array_foreach(files, i, file) print_file(file);
	print_prefixes(json_object_get(all, "by_prefix"));
	printf("%-40s %9s  tensors\n", "dtype", "size");
	json_object_foreach(json_object_get(all, "by_dtype"), key, sum)
		print_sum(key, sum, 0);
	print_sum("total", json_object_get(all, "total"), 0);
}

int ctl_tensors(const struct ctl_args *args)
{
	struct ctl_scan scan = { 0 };
	int status = ctl_scan(args->path, &scan);
	json_t *all;

	if (status)
		return status;
	if (!scan.n) {
		ctl_scan_fini(&scan);
		return ctl_fail("'%s': no file in it has tensors", args->path);
	}
	all = scan_json(&scan, args->depth < 0 ? DEPTH : (unsigned)args->depth);
	if (!all)
		status = ctl_fail("out of memory");
	else if (args->json && !json_dumpf(all, stdout, JSON_INDENT(1)))
		putchar('\n');
	else if (!args->json)
		print_all(all);
	json_decref(all);
	ctl_scan_fini(&scan);
	return status;
}
