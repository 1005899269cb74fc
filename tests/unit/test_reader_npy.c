/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .npy headers by hand, good and bad; and the header that we write, which our
 * own parser must take.
 */
#include "providers/reader.h"
#include "providers/reader_npy.h"
#include "reader_fixture.h"

static size_t make(uint8_t *out, unsigned version, const char *dict,
		   size_t n_data)
{
	size_t len = strlen(dict), at = version == 1 ? 10 : 12;

	memcpy(out, "\x93NUMPY", 6);
	out[6] = (uint8_t)version;
	out[7] = 0;
	put_le(out + 8, len, at - 8);
	memcpy(out + at, dict, len);
	memset(out + at + len, 7, n_data);
	return at + len + n_data;
}

static int scan(unsigned version, const char *dict, size_t n_data,
		struct tensor_table **out)
{
	uint8_t file[4096];

	return scan_bytes(file, make(file, version, dict, n_data), "x.npy",
			  out);
}

static void finds(void)
{
	struct tensor_table *t = NULL;
	const struct tensor *a;

	CHECK_EQ(scan(1,
		      "{'descr': '>f4', 'fortran_order': True, "
		      "'shape': (2, 3), }   \n",
		      24, &t),
		 0);
	CHECK_STR(tensor_table_format(t), "npy");
	a = tensor_table_at(t, 0);
	CHECK_STR(a->name, "array");
	CHECK_EQ(a->type, TENSOR_F32);
	CHECK(a->pieces->swapped);
	CHECK(a->pieces->stride[0] == 1 && a->pieces->stride[1] == 2);
	tensor_table_free(t);
	CHECK_EQ(scan(2,
		      "{\"shape\":(),\"fortran_order\":False,\"descr\":"
		      "\"|b1\"}",
		      1, &t),
		 0);
	CHECK_EQ(tensor_table_at(t, 0)->n_dims, 0);
	tensor_table_free(t);
	CHECK_EQ(scan(3, "{'descr':'<c16','fortran_order':False,'shape':(0L,)}",
		      0, &t),
		 0);
	CHECK_EQ(tensor_table_at(t, 0)->n_pieces, 0);
	tensor_table_free(t);
}

#define D "'descr':'<i8',"
#define F "'fortran_order':False,"

static void refuses(void)
{
	static const char *const bad[] = {
		"",
		"{}",
		"{" D F "}",
		"{" D F "'shape':(1)}",
		"{" D F "'shape':(,)}",
		"{" D F "'shape':(1,,)}",
		"{" D F "'shape':(1 1)}",
		"{" D F "'shape':(-1,)}",
		"{" D F "'shape':[1]}",
		"{" D F "'shape':(1,)",
		"{" D F "'shape':(1,)}x",
		"{" D F "'shape':(1,),'shape':(1,)}",
		"{" D F "'shape':(1,),'more':1}",
		"{" D F "'shape':(9,)}",
		"{" D F "'shape':(99999999999999999999,)}",
		"{" D F "'shape':(4294967296,4294967296,0)}",
		"{" D F "'shape':(1152921504606846976,)}",
		"{" D "'fortran_order':0,'shape':(1,)}",
		"{'descr':'|O'," F "'shape':(1,)}",
		"{'descr':'<U4'," F "'shape':(1,)}",
		"{'descr':'<M8[ns]'," F "'shape':(1,)}",
		"{'descr':'|i8'," F "'shape':(1,)}",
		"{'descr':'i8'," F "'shape':(1,)}",
		"{'descr':[('a','<i8')]," F "'shape':(1,)}",
		"{'descr':'<i8\\''," F "'shape':(1,)}",
		"{'descr':'<i8," F "'shape':(1,)}",
		"{'descr':'<i8i8i8i8i8i8i8i8'," F "'shape':(1,)}",
		"{" D F
		"'shape':(1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
		"1,1,1,1,1,1,1,1,1,1)}",
	};
	struct tensor_table *t = NULL;
	uint8_t file[256];
	size_t len;

	CHECK_EQ(scan(1, "{" D F "'shape':(1,)}", 8, &t), 0);
	tensor_table_free(t);
	t = NULL;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		if (scan(1, bad[i], 8, &t) != -ENOMSG) {
			fprintf(stderr, "accepted: %s\n", bad[i]);
			exit(1);
		}
	}
	CHECK_EQ(scan(4, "{" D F "'shape':(1,)}", 8, &t), -ENOMSG);
	len = make(file, 1, "{" D F "'shape':(1,)}", 8);
	for (size_t i = 0; i < len; i++)
		CHECK_EQ(scan_bytes(file, i, "x", &t), -ENOMSG);
	put_le(file + 8, 0xffff, 2);
	CHECK_EQ(scan_bytes(file, len, "x", &t), -ENOMSG);
	len = make(file, 2, "{" D F "'shape':(1,)}", 8);
	put_le(file + 8, UINT32_MAX, 4);
	CHECK_EQ(scan_bytes(file, len, "x", &t), -ENOMSG);
	CHECK(!t);
}

static void writes(unsigned n_dims, uint64_t dim)
{
	uint64_t shape[TENSOR_DIMS_MAX];
	struct tensor t = { .type = TENSOR_I32,
			    .n_dims = n_dims,
			    .shape = shape };
	uint8_t header[2048];
	struct npy_header h;
	size_t len;

	for (unsigned i = 0; i < n_dims; i++)
		shape[i] = i ? dim : 0;
	memset(header, 'x', sizeof(header));
	len = tensor_npy_header(&t, header, 63);
	CHECK(len > 63 && header[0] == 'x');
	CHECK_EQ(tensor_npy_header(&t, header, sizeof(header)), len);
	CHECK_EQ(len % 64, 0);
	CHECK_EQ(npy_header_parse(header, len, &h), 0);
	CHECK_EQ(h.type, TENSOR_I32);
	CHECK_EQ(h.n_dims, n_dims);
	for (unsigned i = 0; i < n_dims; i++)
		CHECK_EQ(h.shape[i], shape[i]);
}

int main(void)
{
	finds();
	refuses();
	writes(0, 0);
	writes(1, 0);
	writes(2, INT64_MAX / 4);
	writes(TENSOR_DIMS_MAX, 1);
	return 0;
}
