/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors layout: header and places byte by byte, and what the format
 * cannot hold. That the library reads it is tests/framework's.
 */
#include "layout_fixture.h"

static const uint64_t two[] = { 2 };

static int add(struct ckpt_safetensors *st, const char *name, const char *type,
	       uint64_t n, const void *bytes, size_t len)
{
	return ckpt_safetensors_add(st, name, type, &n, 1,
				    ckpt_memory_copied(bytes, len));
}

static void header_and_places(void)
{
	static const char json[] =
		"{\"__metadata__\":{\"format\":\"pt\"},"
		"\"d\":{\"dtype\":\"F32\",\"shape\":[1],"
		"\"data_offsets\":[0,4]},"
		"\"a\":{\"dtype\":\"BF16\",\"shape\":[2],"
		"\"data_offsets\":[4,8]},"
		"\"b\\\"\\u0009\":{\"dtype\":\"U8\",\"shape\":[3],"
		"\"data_offsets\":[8,11]},"
		"\"c\":{\"dtype\":\"U8\",\"shape\":[],"
		"\"data_offsets\":[11,12]}}";
	struct ckpt_safetensors *st;
	struct ckpt_provider *p;
	uint8_t *file;
	size_t len, header_len;

	CHECK_EQ(ckpt_safetensors_new(&st), 0);
	CHECK_EQ(ckpt_safetensors_add(st, "c", "U8", NULL, 0,
				      ckpt_memory_copied("C", 1)),
		 0);
	CHECK_EQ(add(st, "b\"\t", "U8", 3, "bbb", 3), 0);
	CHECK_EQ(add(st, "a", "BF16", 2, "aaaa", 4), 0);
	CHECK_EQ(add(st, "d", "F32", 1, "dddd", 4), 0);
	CHECK_EQ(ckpt_safetensors_metadata(st, "format", "pt"), 0);
	CHECK_EQ(ckpt_safetensors_metadata(st, "format", "tf"), -EEXIST);
	CHECK_EQ(ckpt_safetensors_finish(st, &p), 0);
	len = layout_save(p, &file);

	header_len = get(file, 8);
	CHECK_EQ(header_len % 8, 0);
	CHECK_EQ(header_len, (sizeof(json) - 1 + 7) / 8 * 8);
	CHECK(!memcmp(file + 8, json, sizeof(json) - 1));
	for (size_t i = sizeof(json) - 1; i < header_len; i++)
		CHECK_EQ(file[8 + i], ' ');
	CHECK_EQ(len, 8 + header_len + 12);
	CHECK_STR((const char *)file + 8 + header_len, "ddddaaaabbbC");
	free(file);
}

static void nothing_in_it(void)
{
	struct ckpt_safetensors *st;
	struct ckpt_provider *p;
	uint8_t *file;

	CHECK_EQ(ckpt_safetensors_new(&st), 0);
	CHECK_EQ(ckpt_safetensors_finish(st, &p), 0);
	CHECK_EQ(layout_save(p, &file), 16);
	CHECK_STR((const char *)file + 8, "{}      ");
	free(file);
}

static void wrong_use(void)
{
	static const uint64_t huge[] = { UINT64_C(1) << 40, UINT64_C(1) << 40 };
	struct ckpt_safetensors *st;
	struct ckpt_provider *p;
	int n = 0, r;

	CHECK_EQ(ckpt_safetensors_new(&st), 0);
	r = ckpt_safetensors_add(st, "a", "F32", two, 1, NULL);
	CHECK_EQ(r, -ENOMEM);
	r = ckpt_safetensors_add(st, "a", "F33", two, 1, watched(8, &n));
	CHECK_EQ(r, -EINVAL);
	r = ckpt_safetensors_add(st, "a", "F32", two, 1, watched(7, &n));
	CHECK_EQ(r, -EINVAL);
	r = ckpt_safetensors_add(st, "a", "F4", two + 0, 0, watched(1, &n));
	CHECK_EQ(r, -EINVAL); /* half a byte */
	r = ckpt_safetensors_add(st, "a", "U8", huge, 2, watched(0, &n));
	CHECK_EQ(r, -EINVAL);
	r = ckpt_safetensors_add(st, "a\xff", "F32", two, 1, watched(8, &n));
	CHECK_EQ(r, -EINVAL);
	r = ckpt_safetensors_add(st, "__metadata__", "F32", two, 1,
				 watched(8, &n));
	CHECK_EQ(r, -EINVAL);
	CHECK_EQ(n, 6);
	r = ckpt_safetensors_add(st, "a", "F32", two, 1, watched(8, &n));
	CHECK_EQ(r, 0);
	r = ckpt_safetensors_add(st, "a", "I8", two, 1, watched(2, &n));
	CHECK_EQ(r, 0);
	CHECK_EQ(ckpt_safetensors_finish(st, &p), -EEXIST);
	CHECK_EQ(n, 8);
	ckpt_safetensors_free(NULL);
}

int main(void)
{
	check_tmpdir();
	header_and_places();
	nothing_in_it();
	wrong_use();
	return 0;
}
