/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors files by hand: what is valid is found, what breaks any rule of
 * the format is opaque, and no cut or flipped byte does harm.
 */
#include "providers/reader.h"
#include "reader_fixture.h"

/* The file with this header and n_data bytes behind it. */
static size_t make(uint8_t *out, const char *header, size_t n_data)
{
	size_t len = strlen(header);

	put_le(out, len, 8);
	memcpy(out + 8, header, len);
	for (size_t i = 0; i < n_data; i++)
		out[8 + len + i] = (uint8_t)i;
	return 8 + len + n_data;
}

static int scan(const char *header, size_t n_data, struct tensor_table **out)
{
	uint8_t file[16384];
	size_t len = make(file, header, n_data);

	CHECK(len < sizeof(file));
	return scan_bytes(file, len, "x", out);
}

static void finds_tensors(void)
{
	static const char header[] =
		"{\"__metadata__\":{\"format\":\"pt\"},"
		"\"a\\u00e9\\ud83d\\ude00\":{\"dtype\":\"F32\",\"shape\":[2,3],"
		"\"data_offsets\":[4,28]},"
		" \"b\" : {\"shape\": [], \"dtype\": \"I32\", "
		"\"data_offsets\": [0,4], \"more\": [{}, null, -1.5e+3]},"
		"\"none\":{\"dtype\":\"BF16\",\"shape\":[0,7],"
		"\"data_offsets\":[28,28]},"
		"\"f4\":{\"dtype\":\"F4\",\"shape\":[2,4],"
		"\"data_offsets\":[28,32]}}   ";
	CLEANUP(tensor_table_freep) struct tensor_table *t = NULL;
	const struct tensor *a;

	CHECK_EQ(scan(header, 32, &t), 0);
	CHECK_STR(tensor_table_format(t), "safetensors");
	CHECK_EQ(tensor_table_count(t), 4);
	a = tensor_table_find(t, "a\xc3\xa9\xf0\x9f\x98\x80");
	CHECK(a && a == tensor_table_at(t, 0));
	CHECK_EQ(a->type, TENSOR_F32);
	CHECK_STR(a->type_name, "F32");
	CHECK_EQ(a->n_pieces, 1);
	CHECK_EQ(a->pieces->off, 8 + sizeof(header) - 1 + 4);
	CHECK_EQ(a->pieces->len, 24);
	CHECK_EQ(a->pieces->stride[0], 3);
	CHECK_EQ(a->pieces->stride[1], 1);
	CHECK_EQ(tensor_elements(tensor_table_find(t, "b")), 1);
	CHECK_EQ(tensor_table_find(t, "none")->n_pieces, 0);
	CHECK_EQ(tensor_table_find(t, "f4")->shape[1], 2);
	CHECK(!tensor_table_find(t, "c"));
}

#define T "\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":"

static void refuses(void)
{
	static const char *const bad[] = {
		"{}", /* bytes left over */
		"[]",
		" {\"a\":{" T "[0,4]}}", /* not first */
		"{\"a\":{" T "[0,4]}}x",
		"{\"a\":{" T "[0,4]},}",
		"{\"a\":{" T "[0,4]}",
		"{\"a\":{" T "[0,4]},\"a\":{" T "[4,8]}}",
		"{\"a\":{" T "[0,5]}}",
		"{\"a\":{" T "[4,0]}}",
		"{\"a\":{" T "[1,5]}}",
		"{\"a\":{" T "[0,4,8]}}",
		"{\"a\":{" T "[0]}}",
		"{\"a\":{" T "[-0,4]}}",
		"{\"a\":{" T "[0,4.0]}}",
		"{\"a\":{" T "[00,4]}}",
		"{\"a\":{" T "[0,4],\"dtype\":\"U8\"}}",
		"{\"a\":{" T "[0,4],\"shape\":[4]}}",
		"{\"a\":{" T "[0,4],\"data_offsets\":[0,4]}}",
		"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,4]}}",
		"{\"a\":{\"dtype\":\"U9\",\"shape\":[4],\"data_offsets\":[0,4]}}",
		"{\"a\":{\"dtype\":\"F4\",\"shape\":[8,1],"
		"\"data_offsets\":[0,4]}}", /* PyTorch has no such view */
		"{\"\":{" T "[0,4]}}",
		"{\"a\\u0000\":{" T "[0,4]}}",
		"{\"\\ud800\":{" T "[0,4]}}",
		"{\"\\udc00\":{" T "[0,4]}}",
		"{\"\xff\":{" T "[0,4]}}",
		"{\"\xc0\x80\":{" T "[0,4]}}",
		"{\"a\n\":{" T "[0,4]}}",
		"{\"a\":{" T "[0,4]},\"__metadata__\":{\"x\":1}}",
		"{\"a\":{" T "[0,4]},\"b\":{" T "[0,4]}}",
		"{\"a\":{" T "[0,18446744073709551615]}}",
		"{\"a\":{" T "[0,99999999999999999999999999]}}",
		"{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],"
		"\"data_offsets\":[0,0]},\"b\":{" T "[0,4]}}",
		"{\"a\":{\"dtype\":\"F64\",\"shape\":"
		"[9223372036854775807,9223372036854775807,0],"
		"\"data_offsets\":[0,0]},\"b\":{" T "[0,4]}}",
		"{\"a\":{" T "[0,4],\"x\":truE}}",
		"{\"a\":{" T "[0,4],\"x\":1.}}",
		"{\"a\":{" T "[0,4],\"x\":1e}}",
	};
	struct tensor_table *t = NULL;

	CHECK_EQ(scan("{\"a\":{" T "[0,4]}}", 4, &t), 0);
	tensor_table_free(t);
	t = NULL;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		if (scan(bad[i], 4, &t) != -ENOMSG) {
			fprintf(stderr, "accepted: %s\n", bad[i]);
			exit(1);
		}
	}
	CHECK(!t);
}

static void is_cut_anywhere(void)
{
	uint8_t file[4096];
	size_t len = make(file,
			  "{\"a\":{" T "[0,4]},\"b\":{" T
			  "[4,8]},\"__metadata__\":{\"k\":\"v\"}}",
			  8);
	struct tensor_table *t = NULL;

	for (size_t i = 0; i < len; i++)
		CHECK_EQ(scan_bytes(file, i, "x.safetensors", &t), -ENOMSG);
	/* Any byte may become any other: found or not, never a fault. */
	for (size_t i = 0; i < len; i++)
		for (unsigned v = 0; v < 256; v++) {
			uint8_t was = file[i];
			int rc;

			file[i] = (uint8_t)v;
			rc = scan_bytes(file, len, "x", &t);
			file[i] = was;
			CHECK(!rc || rc == -ENOMSG);
			if (!rc) {
				CHECK_EQ(tensor_table_count(t), 2);
				tensor_table_free(t);
			}
		}
}

/* Deep nesting, and a header as long as it may be. */
static void costs_little(void)
{
	size_t len = 100000000, i;
	uint8_t *file = malloc(len + 9);
	struct bytes_file f = { .p = file, .len = len + 9 };
	struct reader_source source = bytes_source(&f);
	struct tensor_table *t = NULL;

	CHECK(file);
	put_le(file, len, 8);
	memset(file + 8, '[', len + 1);
	memcpy(file + 8, "{\"a\":{\"x\":", 10);
	CHECK_EQ(tensor_table_scan(&source, "x", &t), -ENOMSG);
	CHECK(f.n_read < (1 << 20));
	put_le(file, len + 1, 8);
	CHECK_EQ(tensor_table_scan(&source, "x", &t), -ENOMSG);
	/* Millions of values, of which a tree would be made. */
	f.len = 10000000;
	put_le(file, f.len - 8, 8);
	source = bytes_source(&f);
	for (i = 19; i + 2 < f.len; i += 2)
		memcpy(file + i, "0,", 2);
	CHECK_EQ(tensor_table_scan(&source, "x", &t), -ENOMSG);
	free(file);
}

/* Many, found again by name. */
static void has_many(void)
{
	enum { n = 200000 };
	size_t room = (size_t)n * 80 + 16, at = 8;
	char *file = malloc(room);
	struct bytes_file f = { .p = (uint8_t *)file };
	struct reader_source source;
	struct tensor_table *t = NULL;
	char name[32];

	CHECK(file);
	file[at++] = '{';
	for (int i = 0; i < n; i++)
		at += (size_t)snprintf(
			file + at, room - at,
			"%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[1,1],"
			"\"data_offsets\":[%d,%d]}",
			i ? "," : "", i, i, i + 1);
	file[at++] = '}';
	put_le((uint8_t *)file, at - 8, 8);
	f.len = at + n;
	f.p = (uint8_t *)(file = realloc(file, f.len));
	CHECK(file);
	memset(file + at, 0, n);
	source = bytes_source(&f);
	CHECK_EQ(tensor_table_scan(&source, "x", &t), 0);
	CHECK_EQ(tensor_table_count(t), n);
	for (int i = 0; i < n; i += 997) {
		snprintf(name, sizeof(name), "t%d", i);
		CHECK(tensor_table_find(t, name) == tensor_table_at(t, i));
	}
	tensor_table_free(t);
	free(file);
}

static int stop(void *arg, const struct tensor *t)
{
	(void)t;
	++*(int *)arg;
	return -ECANCELED;
}

static void passes_errors_on(void)
{
	uint8_t file[256];
	struct bytes_file f = { .p = file };
	const struct reader_ops *format = NULL;
	struct reader_source source;
	int n = 0;

	f.len = make(file, "{\"a\":{" T "[0,4]}}", 4);
	source = bytes_source(&f);
	CHECK_EQ(reader_scan(&source, "x", &format, stop, &n), -ECANCELED);
	CHECK(n == 1 && !format);
	f.error = -EIO;
	CHECK_EQ(reader_scan(&source, "x", &format, stop, &n), -EIO);
	CHECK_EQ(n, 1);
	CHECK_STR(reader_find(file, f.len, "x")->name, "safetensors");
	CHECK(!reader_find(file, 8, "x"));
}

int main(void)
{
	finds_tensors();
	refuses();
	is_cut_anywhere();
	costs_little();
	has_many();
	passes_errors_on();
	return 0;
}
