/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GGUF files by hand, in both byte orders: every kind of value is skipped, the
 * places are right, and what lies about its lengths is opaque.
 */
#include "providers/reader.h"
#include "reader_fixture.h"

struct file {
	uint8_t p[8192];
	size_t len;
	bool big;
};

static void put(struct file *f, uint64_t v, size_t n)
{
	put_le(f->p + f->len, v, n);
	for (size_t i = 0; f->big && i < n / 2; i++) {
		uint8_t b = f->p[f->len + i];

		f->p[f->len + i] = f->p[f->len + n - 1 - i];
		f->p[f->len + n - 1 - i] = b;
	}
	f->len += n;
}

static void put_text(struct file *f, const char *s)
{
	put(f, strlen(s), 8);
	memcpy(f->p + f->len, s, strlen(s));
	f->len += strlen(s);
}

static void start(struct file *f, bool big, uint64_t n_tensors, uint64_t n_keys)
{
	memset(f, 0, sizeof(*f));
	f->big = big;
	memcpy(f->p, "GGUF", 4);
	f->len = 4;
	put(f, 3, 4);
	put(f, n_tensors, 8);
	put(f, n_keys, 8);
}

static void put_info(struct file *f, const char *name, uint64_t inner,
		     uint64_t outer, uint64_t type, uint64_t off)
{
	put_text(f, name);
	put(f, 2, 4);
	put(f, inner, 8);
	put(f, outer, 8);
	put(f, type, 4);
	put(f, off, 8);
}

static void pad(struct file *f, size_t alignment)
{
	f->len = (f->len + alignment - 1) / alignment * alignment;
}

/* A key of each type, an array of each, and arrays of arrays. */
static void put_all_values(struct file *f)
{
	static const unsigned lens[] = {
		1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8
	};

	for (unsigned type = 0; type < 13; type++) {
		if (!lens[type])
			continue;
		put_text(f, "one");
		put(f, type, 4);
		put(f, 1, lens[type]);
		put_text(f, "many");
		put(f, 9, 4);
		put(f, type, 4);
		put(f, 3, 8);
		f->len += (size_t)3 * lens[type];
	}
	put_text(f, "text");
	put(f, 8, 4);
	put_text(f, "");
	put_text(f, "a key that is much longer than any that anybody is "
		    "looking for, really");
	put(f, 9, 4);
	put(f, 8, 4);
	put(f, 2, 8);
	put_text(f, "x");
	put_text(f, "yz");
	put_text(f, "arrays");
	put(f, 9, 4);
	put(f, 9, 4);
	put(f, 1, 8);
	put(f, 8, 4);
	put(f, 1, 8);
	put_text(f, "deep");
}

#define N_KEYS 26

static void make(struct file *f, bool big)
{
	start(f, big, 3, N_KEYS);
	put_all_values(f);
	put_text(f, "general.alignment");
	put(f, 4, 4);
	put(f, 64, 4);
	put_info(f, "f", 3, 2, 0, 0);
	put_info(f, "q", 512, 2, 12, 64);
	put_info(f, "b", 2, 1, 30, 64 + 576);
	pad(f, 64);
	f->len += 64 + 576 + 4;
}

static void finds(bool big)
{
	struct tensor_table *t = NULL;
	const struct tensor *q;
	struct file f;

	make(&f, big);
	CHECK_EQ(scan_bytes(f.p, f.len, "x", &t), 0);
	CHECK_STR(tensor_table_format(t), "gguf");
	CHECK_EQ(tensor_table_count(t), 3);
	CHECK_EQ(tensor_table_at(t, 0)->pieces->off, f.len - 4 - 576 - 64);
	CHECK_EQ(tensor_table_at(t, 0)->pieces->swapped, big);
	CHECK_EQ(tensor_table_at(t, 0)->shape[0], 2);
	CHECK_EQ(tensor_table_at(t, 0)->shape[1], 3);
	q = tensor_table_find(t, "q");
	CHECK_EQ(q->type, TENSOR_PACKED);
	CHECK_STR(q->type_name, "Q4_K");
	CHECK_EQ(q->pieces->len, 576);
	CHECK_EQ(tensor_len(q), 576);
	CHECK_EQ(tensor_table_find(t, "b")->type, TENSOR_BF16);
	tensor_table_free(t);
}

static void is_damaged(bool big)
{
	struct tensor_table *t = NULL;
	struct file f;

	make(&f, big);
	for (size_t i = 0; i < f.len; i++)
		CHECK_EQ(scan_bytes(f.p, i, "x", &t), -ENOMSG);
	for (size_t i = 0; i < f.len; i++) {
		static const uint8_t values[] = { 0, 1, 0x7f, 0x80, 0xff };
		uint8_t was = f.p[i];

		for (size_t v = 0; v < sizeof(values); v++) {
			int rc;

			f.p[i] = values[v];
			rc = scan_bytes(f.p, f.len, "x", &t);
			CHECK(!rc || rc == -ENOMSG || rc == -E2BIG);
			if (!rc)
				tensor_table_free(t);
			t = NULL;
		}
		f.p[i] = was;
	}
}

static int one(uint64_t inner, uint64_t outer, uint64_t type, uint64_t off,
	       size_t data)
{
	struct tensor_table *t = NULL;
	struct file f;
	int rc;

	start(&f, false, 1, 0);
	put_info(&f, "x", inner, outer, type, off);
	pad(&f, 32);
	f.len += data;
	rc = scan_bytes(f.p, f.len, "x", &t);
	tensor_table_free(t);
	return rc;
}

static void refuses(void)
{
	struct tensor_table *t = NULL;
	struct file f;

	CHECK_EQ(one(32, 1, 2, 0, 18), 0);
	CHECK_EQ(one(32, 1, 2, 0, 17), -ENOMSG);
	CHECK_EQ(one(33, 1, 2, 0, 99), -ENOMSG);
	CHECK_EQ(one(32, 1, 2, 32, 99), -ENOMSG);
	CHECK_EQ(one(32, 1, 5, 0, 99), -ENOMSG); /* a type that went */
	CHECK_EQ(one(32, 1, 99, 0, 99), -ENOMSG);
	CHECK_EQ(one(32, 1, UINT32_MAX, 0, 99), -ENOMSG);
	CHECK_EQ(one(UINT64_C(1) << 63, 4, 0, 0, 99), -ENOMSG);
	CHECK_EQ(one(UINT64_C(1) << 63, 0, 0, 0, 99), -ENOMSG);
	CHECK_EQ(one(7, 0, 0, 0, 0), 0);
	/* Counts that nothing stands behind end at the file's end. */
	start(&f, false, 0, UINT64_MAX);
	CHECK_EQ(scan_bytes(f.p, f.len, "x", &t), -ENOMSG);
	start(&f, false, UINT64_MAX, 0);
	CHECK_EQ(scan_bytes(f.p, f.len, "x", &t), -E2BIG);
	for (uint64_t type = 0; type < 14; type++) {
		start(&f, false, 0, 1);
		put_text(&f, "k");
		put(&f, 9, 4);
		put(&f, type, 4);
		put(&f, UINT64_MAX / 2, 8);
		f.len += 100;
		CHECK_EQ(scan_bytes(f.p, f.len, "x", &t), -ENOMSG);
	}
	/* Arrays of arrays of arrays … */
	start(&f, false, 0, 1);
	put_text(&f, "k");
	put(&f, 9, 4);
	for (int i = 0; i < 500; i++) {
		put(&f, 9, 4);
		put(&f, 1, 8);
	}
	CHECK_EQ(scan_bytes(f.p, f.len, "x", &t), -ENOMSG);
	for (uint64_t v = 0; v < 5; v++) {
		start(&f, false, 0, 0);
		put_le(f.p + 4, v, 4);
		CHECK_EQ(scan_bytes(f.p, f.len, "x", &t),
			 v == 2 || v == 3 ? 0 : -ENOMSG);
		tensor_table_free(t);
		t = NULL;
	}
	for (uint64_t alignment = 0; alignment < 70; alignment += 3) {
		start(&f, false, 0, 1);
		put_text(&f, "general.alignment");
		put(&f, 4, 4);
		put(&f, alignment, 4);
		CHECK_EQ(scan_bytes(f.p, f.len, "x", &t), -ENOMSG);
	}
}

int main(void)
{
	finds(false);
	finds(true);
	is_damaged(false);
	is_damaged(true);
	refuses();
	return 0;
}
