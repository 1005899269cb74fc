/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the readers see in a file, for tests that write files with the real
 * frameworks:
 *
 *   reader_dump [-r] FILE        as JSON; -r: other files are not looked into
 *   reader_dump -e FILE          as a record
 *   reader_dump FILE DIR [LEN]   and each tensor as DIR/NUMBER.npy, LEN bytes
 *                                at a time
 *
 * All goes through a record, as in the daemon. An opaque file: {"opaque": true}.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "providers/reader_gather.h"
#include "providers/reader_table.h"

/* Files that are open already, by name. */
struct files {
	char folder[PATH_MAX];
	char self[PATH_MAX]; /* last part */
	struct {
		char name[PATH_MAX];
		int fd;
	} open[1024];
	size_t n;
};

static void die(const char *what, int rc)
{
	fprintf(stderr, "reader_dump: %s: %s\n", what, strerror(-rc));
	exit(2);
}

static int file_read(void *arg, void *buf, size_t len, uint64_t off)
{
	uint8_t *to = buf;

	while (len) {
		ssize_t n = pread(*(int *)arg, to, len, (off_t)off);

		if (n <= 0)
			return n ? -errno : -EIO;
		to += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

static int open_new(struct files *f, const char *file)
{
	char path[2 * PATH_MAX];

	if (f->n == sizeof(f->open) / sizeof(*f->open))
		return -EMFILE;
	snprintf(path, sizeof(path), "%s/%s", f->folder, file);
	f->open[f->n].fd = open(path, O_RDONLY | O_CLOEXEC);
	if (f->open[f->n].fd < 0)
		return -errno;
	snprintf(f->open[f->n++].name, PATH_MAX, "%s", file);
	return 0;
}

static int file_open(void *arg, const char *file, struct reader_source *out)
{
	struct files *f = arg;
	struct stat st;
	size_t i = 0;
	int rc = 0;

	if (!file)
		file = f->self;
	while (i < f->n && strcmp(f->open[i].name, file) != 0)
		i++;
	if (i == f->n)
		rc = open_new(f, file);
	if (!rc && fstat(f->open[i].fd, &st))
		rc = -errno;
	if (rc)
		return rc;
	*out = (struct reader_source){
		.size = (uint64_t)st.st_size,
		.read = file_read,
		.arg = &f->open[i].fd,
	};
	return 0;
}

static struct tensor_table *through_record(struct tensor_table *table)
{
	struct tensor_table *out = NULL;
	uint8_t *record;
	size_t len;
	int rc = tensor_table_encode(table, &record, &len);

	if (!rc)
		rc = tensor_table_decode(record, len, &out);
	if (rc)
		die("record", rc);
	free(record);
	tensor_table_free(table);
	return out;
}

static struct tensor_table *scan(struct files *f, bool resolve)
{
	struct tensor_table *table, *resolved;
	struct reader_source source;
	int rc = file_open(f, NULL, &source);

	if (!rc)
		rc = tensor_table_scan(&source, f->self, &table);
	if (rc == -ENOMSG || rc == -E2BIG) {
		printf("{\"opaque\": true}\n");
		exit(0);
	}
	if (rc)
		die(f->self, rc);
	table = through_record(table);
	if (!resolve)
		return table;
	rc = tensor_table_resolve(table, file_open, f, &resolved);
	if (rc)
		die("resolve", rc);
	tensor_table_free(table);
	return through_record(resolved);
}

static json_t *numbers(const uint64_t *n, unsigned count)
{
	json_t *out = json_array();

	for (unsigned i = 0; i < count; i++)
		json_array_append_new(out, json_integer((json_int_t)n[i]));
	return out;
}

static json_t *piece_json(const struct tensor *t, const struct tensor_piece *p)
{
	return json_pack("{so* sb si sI sI so so so*}", "file",
			 p->file ? json_string(p->file) : NULL, "swapped",
			 p->swapped, "coding", (int)p->coding, "off",
			 (json_int_t)p->off, "len", (json_int_t)p->len, "start",
			 numbers(p->start, t->n_dims), "shape",
			 numbers(p->shape, t->n_dims), "stride",
			 p->stride ? numbers(p->stride, t->n_dims) : NULL);
}

static json_t *tensor_json(const struct tensor *t)
{
	json_t *pieces = json_array();
	const struct tensor_piece *run;

	for (unsigned i = 0; i < t->n_pieces; i++)
		json_array_append_new(pieces, piece_json(t, &t->pieces[i]));
	return json_pack("{ss ss so* so sI sb sb so}", "name", t->name, "dtype",
			 tensor_type_name(t->type), "type_name",
			 t->type_name ? json_string(t->type_name) : NULL,
			 "shape", numbers(t->shape, t->n_dims), "len",
			 (json_int_t)tensor_len(t), "shared", t->shared, "run",
			 tensor_is_run(t, &run), "pieces", pieces);
}

static void print(const struct tensor_table *table)
{
	json_t *tensors = json_array(), *all;

	for (size_t i = 0; i < tensor_table_count(table); i++)
		json_array_append_new(tensors,
				      tensor_json(tensor_table_at(table, i)));
	all = json_pack("{ss so}", "format", tensor_table_format(table),
			"tensors", tensors);
	if (!all)
		die("JSON", -EINVAL);
	json_dumpf(all, stdout, JSON_COMPACT);
	putchar('\n');
	json_decref(all);
}

static void write_npy(struct files *f, const struct tensor *t, FILE *to,
		      size_t step)
{
	size_t len = tensor_npy_header(t, NULL, 0);
	uint8_t *buf = malloc(step > len ? step : len);

	if (!buf)
		die("memory", -ENOMEM);
	fwrite(buf, 1, tensor_npy_header(t, buf, len), to);
	for (uint64_t off = 0, total = tensor_len(t); off < total; off += len) {
		int rc;

		len = total - off < step ? (size_t)(total - off) : step;
		rc = tensor_gather(t, file_open, f, buf, len, off);
		if (rc)
			die(t->name, rc);
		fwrite(buf, 1, len, to);
	}
	free(buf);
}

static void write_all(struct files *f, const struct tensor_table *table,
		      const char *folder, size_t step)
{
	for (size_t i = 0; i < tensor_table_count(table); i++) {
		char path[PATH_MAX];
		FILE *to;

		snprintf(path, sizeof(path), "%s/%zu.npy", folder, i);
		to = fopen(path, "we");
		if (!to)
			die(path, -errno);
		write_npy(f, tensor_table_at(table, i), to, step);
		if (fclose(to))
			die(path, -errno);
	}
}

static void print_record(const struct tensor_table *table)
{
	uint8_t *record;
	size_t len;
	int rc = tensor_table_encode(table, &record, &len);

	if (rc)
		die("record", rc);
	fwrite(record, 1, len, stdout);
	free(record);
}

int main(int argc, char **argv)
{
	bool encode = argc > 1 && !strcmp(argv[1], "-e");
	bool raw = encode || (argc > 1 && !strcmp(argv[1], "-r"));
	struct files *f = calloc(1, sizeof(*f));
	struct tensor_table *table;
	char **args = argv + 1 + raw, *slash;

	if (!f || !args[0]) {
		fprintf(stderr,
			"usage: reader_dump [-r | -e] FILE [DIR [LEN]]\n");
		return 2;
	}
	snprintf(f->folder, sizeof(f->folder), "%s", args[0]);
	slash = strrchr(f->folder, '/');
	if (slash)
		*slash = '\0';
	snprintf(f->self, sizeof(f->self), "%s", slash ? slash + 1 : args[0]);
	if (!slash)
		snprintf(f->folder, sizeof(f->folder), ".");
	table = scan(f, !raw);
	if (encode)
		print_record(table);
	else
		print(table);
	if (args[1])
		write_all(f, table, args[1],
			  args[2] ? strtoul(args[2], NULL, 10) : 4 << 20);
	tensor_table_free(table);
	for (size_t i = 0; i < f->n; i++)
		close(f->open[i].fd);
	free(f);
	return 0;
}
