/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that are cut, permuted, padded, broadcast, byte-swapped, deflated and
 * nested at random, against a copy made one element at a time; every range.
 */
#include <zlib.h>

#include "providers/reader.h"
#include "providers/reader_npy.h"
#include "reader_fixture.h"

#define FILE_LEN (1 << 18)
#define PIECES_MAX 64

static uint64_t seed = 88172645463325252;

static uint64_t draw(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (seed >> 11) % n;
}

/* A tensor, what it must look like, and the file that it lies in. */
struct made {
	struct tensor t;
	uint64_t shape[TENSOR_DIMS_MAX];
	struct tensor_piece pieces[PIECES_MAX];
	uint64_t start[PIECES_MAX][TENSOR_DIMS_MAX];
	uint64_t box[PIECES_MAX][TENSOR_DIMS_MAX];
	uint64_t stride[PIECES_MAX][TENSOR_DIMS_MAX];
	uint8_t *file;
	size_t file_len;
	uint8_t *image;
	size_t image_len;
};

static int open_file(void *arg, const char *file, struct reader_source *out)
{
	CHECK(!file);
	*out = bytes_source(arg);
	return 0;
}

static size_t swap_len(enum tensor_type type)
{
	if (type == TENSOR_C64 || type == TENSOR_C128 || type == TENSOR_C32)
		return tensor_type_len(type) / 2;
	return tensor_type_len(type);
}

/* Put an element in the image, seen as little-endian. */
static void put_element(struct made *m, uint64_t n, const uint8_t *from,
			bool swapped)
{
	size_t each = tensor_type_len(m->t.type);
	size_t unit = swapped ? swap_len(m->t.type) : 1;

	for (size_t i = 0; i < each; i++)
		m->image[n * each + i] =
			from[i / unit * unit + unit - 1 - i % unit];
}

/* Every element of piece i, which lies at base in the file by its strides. */
static void fill_image(struct made *m, unsigned i, const uint8_t *base,
		       const uint64_t *stride, bool swapped)
{
	uint64_t at[TENSOR_DIMS_MAX] = { 0 };
	size_t each = tensor_type_len(m->t.type);
	unsigned n = m->t.n_dims, d;

	do {
		uint64_t from = 0, to = 0;

		for (d = 0; d < n; d++) {
			from += at[d] * stride[d];
			to = to * m->shape[d] + m->start[i][d] + at[d];
		}
		put_element(m, to, base + from * each, swapped);
		for (d = n; d-- && ++at[d] == m->box[i][d];)
			at[d] = 0;
	} while (d < n);
}

static void plain(struct made *m, unsigned i)
{
	struct tensor_piece *p = &m->pieces[i];
	unsigned order[TENSOR_DIMS_MAX], n = m->t.n_dims;
	uint64_t stride = 1 + draw(2), last = 0;

	for (unsigned d = 0; d < n; d++)
		order[d] = d;
	for (unsigned d = n; d-- > 1;) {
		unsigned k = draw(4) ? d : (unsigned)draw(d + 1), v = order[d];

		order[d] = order[k];
		order[k] = v;
	}
	for (unsigned d = n; d--;) {
		m->stride[i][order[d]] = draw(12) ? stride : 0;
		stride *= m->box[i][order[d]];
		stride += draw(4) ? 0 : draw(3);
	}
	for (unsigned d = 0; d < n; d++)
		last += (m->box[i][d] - 1) * m->stride[i][d];
	p->len = (last + 1) * tensor_type_len(m->t.type);
	if (p->len >= FILE_LEN) {
		plain(m, i); /* once more, with other strides */
		return;
	}
	p->off = draw(FILE_LEN - p->len);
	p->stride = m->stride[i];
	p->swapped = draw(2);
	fill_image(m, i, m->file + p->off, p->stride, p->swapped);
}

/* A .npy of the piece's shape with random data. */
static size_t make_npy(struct made *m, unsigned i, uint8_t *out,
		       struct npy_header *h)
{
	static const char *const names[TENSOR_TYPES] = {
		[TENSOR_U8] = "u1",  [TENSOR_I16] = "i2", [TENSOR_F32] = "f4",
		[TENSOR_F64] = "f8", [TENSOR_C64] = "c8", [TENSOR_C128] = "c16",
	};
	char shape[256] = "";
	int at = 0, len;

	for (unsigned d = 0; d < m->t.n_dims; d++)
		at += snprintf(shape + at, sizeof(shape) - (size_t)at, "%llu,",
			       (unsigned long long)m->box[i][d]);
	len = snprintf((char *)out + 10, 1024,
		       "{'descr': '%c%s', 'fortran_order': %s, "
		       "'shape': (%s), }",
		       draw(2) ? '<' : '>', names[m->t.type],
		       draw(2) ? "True" : "False", shape);
	memcpy(out, "\x93NUMPY\x01\x00", 8);
	put_le(out + 8, (uint64_t)len, 2);
	CHECK_EQ(npy_header_parse(out, 10 + (size_t)len, h), 0);
	CHECK_EQ(h->type, m->t.type);
	for (uint64_t j = 0; j < h->data_len; j++)
		out[h->len + j] = (uint8_t)draw(7);
	fill_image(m, i, out + h->len, h->stride, h->swapped);
	return h->len + h->data_len;
}

static size_t deflated(const uint8_t *p, size_t len, uint8_t *out, size_t room)
{
	z_stream z = { 0 };

	CHECK_EQ(deflateInit2(&z, 6, Z_DEFLATED, -MAX_WBITS, 8, 0), Z_OK);
	z.next_in = (uint8_t *)p;
	z.avail_in = (uInt)len;
	z.next_out = out;
	z.avail_out = (uInt)room;
	CHECK_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	return room - z.avail_out;
}

/* Behind the file's FILE_LEN bytes. */
static void coded(struct made *m, unsigned i, enum tensor_coding coding)
{
	uint8_t *npy = malloc(FILE_LEN), *out;
	struct npy_header h;
	size_t len;

	CHECK(npy);
	len = make_npy(m, i, npy, &h);
	m->file = realloc(m->file, m->file_len + FILE_LEN);
	CHECK(m->file);
	out = m->file + m->file_len;
	m->pieces[i].coding = coding;
	m->pieces[i].off = m->file_len;
	if (coding == TENSOR_DEFLATE)
		len = deflated(npy, len, out, FILE_LEN);
	else
		memcpy(out, npy, len);
	m->pieces[i].len = len;
	m->file_len += len;
	free(npy);
}

/* Cut box i in two at random, some times. */
static void cut(struct made *m, unsigned i)
{
	unsigned d, j = m->t.n_pieces;
	uint64_t at;

	if (!m->t.n_dims || j == PIECES_MAX || !draw(3))
		return;
	d = (unsigned)draw(m->t.n_dims);
	if (m->box[i][d] < 2)
		return;
	at = 1 + draw(m->box[i][d] - 1);
	memcpy(m->box[j], m->box[i], sizeof(m->box[j]));
	memcpy(m->start[j], m->start[i], sizeof(m->start[j]));
	m->box[i][d] = at;
	m->box[j][d] -= at;
	m->start[j][d] += at;
	m->t.n_pieces++;
	cut(m, i);
	cut(m, j);
}

static void make(struct made *m)
{
	static const enum tensor_type types[] = { TENSOR_U8,  TENSOR_I16,
						  TENSOR_F32, TENSOR_F64,
						  TENSOR_C64, TENSOR_C128 };

	memset(m, 0, sizeof(*m));
	m->t.name = "x";
	m->t.type = types[draw(6)];
	m->t.n_dims = (unsigned)draw(6);
	m->t.shape = m->shape;
	m->t.pieces = m->pieces;
	m->t.n_pieces = 1;
	for (unsigned d = 0; d < m->t.n_dims; d++)
		m->shape[d] = m->box[0][d] = 1 + draw(d ? 4 : 12);
	cut(m, 0);
	m->file = malloc(FILE_LEN);
	m->file_len = FILE_LEN;
	m->image_len = tensor_elements(&m->t) * tensor_type_len(m->t.type);
	m->image = malloc(m->image_len);
	CHECK(m->file && m->image);
	for (size_t i = 0; i < FILE_LEN; i += 8)
		put_le(m->file + i, draw(UINT64_MAX), 8);
	for (unsigned i = 0; i < m->t.n_pieces; i++) {
		uint64_t kind = draw(6);

		m->pieces[i].start = m->start[i];
		m->pieces[i].shape = m->box[i];
		if (kind == 0)
			coded(m, i, TENSOR_DEFLATE);
		else if (kind == 1)
			coded(m, i, TENSOR_NESTED);
		else
			plain(m, i);
	}
}

static void check_range(struct made *m, const struct tensor *t, size_t off,
			size_t len)
{
	struct bytes_file f = { .p = m->file, .len = m->file_len };
	uint8_t *got = malloc(len + 1);

	CHECK(got);
	CHECK_EQ(tensor_gather(t, open_file, &f, got, len, off), 0);
	CHECK(!memcmp(got, m->image + off, len));
	CHECK_EQ(tensor_gather(t, open_file, &f, got, 1, m->image_len),
		 -ERANGE);
	CHECK_EQ(tensor_gather(t, open_file, &f, got, len + 1,
			       m->image_len - len),
		 -ERANGE);
	free(got);
}

static void check_ranges(struct made *m, const struct tensor *t)
{
	const struct tensor_piece *run;

	CHECK_EQ(tensor_len(t), m->image_len);
	check_range(m, t, 0, m->image_len);
	for (int i = 0; i < 20; i++) {
		size_t off = draw(m->image_len);

		check_range(m, t, off, draw(m->image_len - off + 1));
	}
	if (tensor_is_run(t, &run))
		CHECK(!memcmp(m->file + run->off, m->image, m->image_len) &&
		      run->len == m->image_len);
}

/* As it is, through a record, and resolved. */
static void check_made(struct made *m)
{
	struct bytes_file f = { .p = m->file, .len = m->file_len };
	struct tensor_table *a = NULL, *b = NULL, *c = NULL;
	uint8_t *record = NULL;
	size_t len;

	CHECK_EQ(tensor_table_new(reader_find((const uint8_t *)"{", 1,
					      "a.index.json"),
				  m->file_len, &a),
		 0);
	CHECK_EQ(tensor_table_add(a, &m->t), 0);
	CHECK_EQ(tensor_table_finish(a), 0);
	check_ranges(m, tensor_table_at(a, 0));
	CHECK_EQ(tensor_table_encode(a, &record, &len), 0);
	CHECK_EQ(tensor_table_decode(record, len, &b), 0);
	check_same_table(a, b);
	CHECK_EQ(tensor_table_resolve(b, open_file, &f, &c), 0);
	check_ranges(m, tensor_table_at(c, 0));
	for (unsigned i = 0; i < tensor_table_at(c, 0)->n_pieces; i++)
		CHECK(tensor_table_at(c, 0)->pieces[i].coding != TENSOR_NESTED);
	free(record);
	tensor_table_free(a);
	tensor_table_free(b);
	tensor_table_free(c);
}

/* Larger than the windows, transposed: read in bounded steps. */
static void is_large(void)
{
	enum { rows = 2100, columns = 1300 };
	static uint32_t from[columns][rows], to[rows][columns];
	uint64_t shape[] = { rows, columns }, stride[] = { 1, rows };
	struct tensor_piece piece = { .len = sizeof(from), .stride = stride };
	struct tensor t = {
		.name = "x",
		.type = TENSOR_U32,
		.n_dims = 2,
		.shape = shape,
		.pieces = &piece,
		.n_pieces = 1,
	};
	struct bytes_file f = { .p = (void *)from, .len = sizeof(from) };
	struct tensor_table *table = NULL;
	const struct tensor_piece *run;

	for (unsigned i = 0; i < columns; i++)
		for (unsigned j = 0; j < rows; j++)
			from[i][j] = i * rows + j;
	CHECK_EQ(tensor_table_new(NULL, f.len, &table), 0);
	CHECK_EQ(tensor_table_add(table, &t), 0);
	CHECK(!tensor_is_run(tensor_table_at(table, 0), &run));
	CHECK_EQ(tensor_gather(tensor_table_at(table, 0), open_file, &f, to,
			       sizeof(to), 0),
		 0);
	for (unsigned i = 0; i < rows; i++)
		for (unsigned j = 0; j < columns; j++)
			CHECK(to[i][j] == from[j][i]);
	CHECK(f.n_read == sizeof(from) && f.n_reads < 10);
	/* A few rows: a short run of each column, not all of them. */
	f.n_read = 0;
	CHECK_EQ(tensor_gather(tensor_table_at(table, 0), open_file, &f, to,
			       sizeof(to[0]) * 2, sizeof(to[0]) * 7),
		 0);
	for (unsigned j = 0; j < columns; j++)
		CHECK(to[0][j] == from[j][7] && to[1][j] == from[j][8]);
	CHECK_EQ(f.n_read, sizeof(to[0]) * 2);
	tensor_table_free(table);
}

/* What became of the file since it was scanned is an error, no fault. */
static void has_changed(struct made *m)
{
	struct bytes_file f = { .p = m->file, .len = m->file_len };
	struct tensor_table *a = NULL;
	uint8_t *got = malloc(m->image_len);

	CHECK(got);
	CHECK_EQ(tensor_table_new(NULL, m->file_len, &a), 0);
	CHECK_EQ(tensor_table_add(a, &m->t), 0);
	for (int i = 0; i < 20; i++) {
		int rc;

		f.len = draw(m->file_len);
		rc = tensor_gather(tensor_table_at(a, 0), open_file, &f, got,
				   m->image_len, 0);
		CHECK(!rc || rc == -EBADMSG);
	}
	f.len = m->file_len;
	f.error = -EIO;
	CHECK_EQ(tensor_gather(tensor_table_at(a, 0), open_file, &f, got,
			       m->image_len, 0),
		 -EIO);
	f.error = 0;
	memset(m->file + FILE_LEN, 0xff, m->file_len - FILE_LEN);
	(void)!tensor_gather(tensor_table_at(a, 0), open_file, &f, got,
			     m->image_len, 0);
	free(got);
	tensor_table_free(a);
}

static int gather_as(struct made *m, const struct tensor *t, size_t file_len)
{
	struct bytes_file f = { .p = m->file, .len = file_len };
	struct tensor_table *table = NULL;
	uint8_t *got = malloc(m->image_len);
	int rc;

	CHECK(got);
	CHECK_EQ(tensor_table_new(NULL, m->file_len, &table), 0);
	CHECK_EQ(tensor_table_add(table, t), 0);
	rc = tensor_gather(tensor_table_at(table, 0), open_file, &f, got,
			   m->image_len, 0);
	tensor_table_free(table);
	free(got);
	return rc;
}

/* A file within the file that is another one than the table says. */
static void is_not_that(struct made *m, enum tensor_coding coding)
{
	uint64_t shape[TENSOR_DIMS_MAX] = { 0 };
	struct tensor t = m->t;

	m->t.name = "x";
	t.type = TENSOR_F32;
	t.n_dims = 2;
	t.shape = shape;
	t.n_pieces = 1;
	m->shape[0] = m->box[0][0] = shape[0] = 100;
	m->shape[1] = m->box[0][1] = shape[1] = 150;
	m->t = t;
	m->file = malloc(FILE_LEN);
	m->file_len = FILE_LEN;
	m->image_len = sizeof(float) * 100 * 150;
	m->image = malloc(m->image_len);
	CHECK(m->file && m->image);
	m->pieces[0] = (struct tensor_piece){ 0 };
	coded(m, 0, coding);
	CHECK_EQ(gather_as(m, &t, m->file_len), 0);
	t.type = TENSOR_U32;
	CHECK_EQ(gather_as(m, &t, m->file_len), -EBADMSG);
	t.type = TENSOR_F32;
	shape[0] = 150;
	shape[1] = 100;
	CHECK_EQ(gather_as(m, &t, m->file_len), -EBADMSG);
	shape[0] = 100;
	shape[1] = 150;
	CHECK_EQ(gather_as(m, &t, m->file_len - 1), -EBADMSG);
	m->pieces[0].len -= 1000;
	CHECK_EQ(gather_as(m, &t, m->file_len), -EBADMSG);
	m->pieces[0].len = 5;
	CHECK_EQ(gather_as(m, &t, m->file_len), -EBADMSG);
	free(m->file);
	free(m->image);
}

/* Bytes that have no elements can be had as they are, from any place. */
static void is_packed(struct made *m)
{
	static uint8_t bytes[1000];
	uint64_t shape[] = { 7, 256 };
	struct tensor_piece piece = { .off = 30, .len = 900 };
	struct tensor t = {
		.name = "x",
		.type = TENSOR_PACKED,
		.type_name = "Q4_K",
		.n_dims = 2,
		.shape = shape,
		.pieces = &piece,
		.n_pieces = 1,
	};
	const struct tensor_piece *run;
	struct npy_header h;
	uint8_t header[256];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 7);
	m->file = bytes;
	m->file_len = sizeof(bytes);
	m->image = bytes + 30;
	m->image_len = 900;
	CHECK(tensor_is_run(&t, &run) && run->off == 30);
	for (int i = 0; i < 20; i++) {
		size_t off = draw(900);

		check_range(m, &t, off, draw(900 - off + 1));
	}
	CHECK_EQ(gather_as(m, &t, 929), -EBADMSG);
	CHECK_EQ(tensor_npy_header(&t, header, sizeof(header)), 128);
	CHECK_EQ(npy_header_parse(header, 128, &h), 0);
	CHECK(h.type == TENSOR_U8 && h.n_dims == 1 && h.shape[0] == 900);
}

int main(void)
{
	static struct made m;

	for (int i = 0; i < 300; i++) {
		make(&m);
		check_made(&m);
		has_changed(&m);
		free(m.file);
		free(m.image);
	}
	is_not_that(&m, TENSOR_DEFLATE);
	is_not_that(&m, TENSOR_NESTED);
	is_packed(&m);
	is_large();
	return 0;
}
