/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pickle machine: what graphs it makes, and that nothing an input says
 * makes it fault, hang or take more memory than it was given.
 */
#include "providers/reader_pickle.h"
#include "check.h"

#define MEMORY (1 << 20)

/* A string literal with NULs, as (bytes, length). */
#define LITERAL(s) (const uint8_t *)(s), sizeof(s) - 1

/* From an allocation of its own, so that a sanitizer sees the end. */
static int parse(const void *bytes, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);
	struct pickle *p = NULL;
	int err;

	CHECK(copy);
	memcpy(copy, bytes, len);
	err = pickle_parse(copy, len, MEMORY, &p);
	pickle_free(p);
	free(copy);
	return err;
}

/*
 * What CPython's pickle.dumps({"a": [1, -2, 70000, None, True], "t": (1,)}, 2)
 * is like; with APPENDS in two runs and an object with attributes.
 */
static const char sample[] =
	"\x80\x02}q\0(X\1\0\0\0aq\1]q\2(K\1J\xfe\xff\xff\xffJ\x70\x11\1\0e"
	"N\x61\x88\x61h\2aX\1\0\0\0tq\3K\1\x85q\4"
	"X\1\0\0\0oq\5ccollections\nOrderedDict\nq\6)Rq\7(h\1h\2h\3h\4u"
	"}q\x08X\1\0\0\0xq\x09\x8a\1\x80sbX\1\0\0\0pq\x0a(h\1h\3tQu.";

static uint32_t member(const struct pickle *p, const char *key)
{
	return pickle_get(p, pickle_root(p), key);
}

static void list_of(const struct pickle *p)
{
	static const int64_t want[] = { 1, -2, 70000 };
	uint32_t list = member(p, "a"), ref;
	struct pickle_iter it;
	int64_t value;

	CHECK_EQ(pickle_kind(p, list), PICKLE_LIST);
	pickle_iter_init(&it, p, list);
	for (int i = 0; i < 3; i++) {
		CHECK(pickle_next(&it, &ref));
		CHECK(pickle_int(p, ref, &value));
		CHECK_EQ(value, want[i]);
	}
	CHECK(pickle_next(&it, &ref));
	CHECK_EQ(pickle_kind(p, ref), PICKLE_NONE);
	CHECK(pickle_next(&it, &ref));
	CHECK(pickle_is_true(p, ref) && !pickle_int(p, ref, &value));
	CHECK(pickle_next(&it, &ref));
	CHECK_EQ(ref, list); /* it holds itself */
	CHECK(!pickle_next(&it, &ref));
}

static void graph(void)
{
	struct pickle *p = NULL;
	uint32_t o, id;
	int64_t value;
	uint64_t size;

	CHECK_EQ(pickle_parse(LITERAL(sample), MEMORY, &p), 0);
	CHECK_EQ(pickle_kind(p, pickle_root(p)), PICKLE_DICT);
	list_of(p);
	CHECK(pickle_size_at(p, member(p, "t"), 0, &size) && size == 1);
	CHECK(!pickle_size_at(p, member(p, "t"), 1, &size));
	o = member(p, "o");
	CHECK_EQ(pickle_kind(p, o), PICKLE_REDUCE);
	CHECK(pickle_is_global(p, pickle_call(p, o), "collections",
			       "OrderedDict"));
	CHECK(!pickle_is_global(p, pickle_call(p, o), "collections",
				"OrderedDic"));
	CHECK_EQ(pickle_tuple_len(p, pickle_args(p, o)), 0);
	CHECK_EQ(pickle_get(p, pickle_items(p, o), "t"), member(p, "t"));
	CHECK(pickle_int(p, pickle_get(p, pickle_state(p, o), "x"), &value));
	CHECK_EQ(value, -128);
	id = pickle_call(p, member(p, "p"));
	CHECK(pickle_is_text(p, pickle_at(p, id, 1), "t"));
	CHECK_EQ(pickle_kind(p, member(p, "none such")), PICKLE_NOTHING);
	CHECK_EQ(pickle_kind(p, UINT32_MAX), PICKLE_NOTHING);
	pickle_free(p);
}

static void truncated(void)
{
	for (size_t len = 0; len < sizeof(sample) - 1; len++)
		CHECK_EQ(parse(sample, len), -ENOMSG);
}

static void any_byte(void)
{
	char bytes[sizeof(sample)];

	memcpy(bytes, sample, sizeof(sample));
	for (size_t i = 0; i < sizeof(sample) - 1; i++) {
		for (int v = 0; v < 256; v++) {
			bytes[i] = (char)v;
			parse(bytes, sizeof(sample) - 1);
		}
		bytes[i] = sample[i];
	}
}

static void good(const uint8_t *bytes, size_t len)
{
	CHECK_EQ(parse(bytes, len), 0);
}

static void bad(const uint8_t *bytes, size_t len)
{
	CHECK_EQ(parse(bytes, len), -ENOMSG);
}

static void opcodes(void)
{
	good(LITERAL("\x80\x02N."));
	good(LITERAL("\x80\x05\x95\2\0\0\0\0\0\0\0N."));
	good(LITERAL("\x80\x04\x8c\1m\x8c\1n\x93."));
	good(LITERAL("\x80\x04\x8c\1m\x8c\1n\x93)}\x92."));
	good(LITERAL("\x80\x04\x8f(K\1K\2\x90."));
	good(LITERAL("\x80\x04(K\1K\2\x91."));
	good(LITERAL("\x80\x02G\0\0\0\0\0\0\0\0."));
	good(LITERAL("\x80\x02\x8b\0\0\0\0."));
	good(LITERAL("\x80\x02\x8a\x09"
		     "123456789."));
	good(LITERAL("\x80\x02NN0."));
	good(LITERAL("\x80\x02N(NN1."));
	good(LITERAL("\x80\x02N2\x86."));
	good(LITERAL("\x80\x02N.trailing"));
	good(LITERAL("\x80\x02(t."));

	bad(LITERAL("N."));
	bad(LITERAL("\x80\x01N."));
	bad(LITERAL("\x80\x06N."));
	bad(LITERAL("\x80\x02."));
	bad(LITERAL("\x80\x02NN."));
	bad(LITERAL("\x80\x02N(."));
	bad(LITERAL("\x80\x02(N."));
	bad(LITERAL("\x80\x02I1\n."));
	bad(LITERAL("\x80\x02\x82\1."));
	bad(LITERAL("\x80\x05\x97."));
	bad(LITERAL("\x80\x04\x95\xff\0\0\0\0\0\0\0N."));
	bad(LITERAL("\x80\x04N\x8c\1n\x93."));
	bad(LITERAL("\x80\x02NNR."));
	bad(LITERAL("\x80\x02NNb."));
	bad(LITERAL("\x80\x02NNs."));
	bad(LITERAL("\x80\x02}NNs0."));
	bad(LITERAL("\x80\x02}(Nu."));
	bad(LITERAL("\x80\x02](NNu."));
	bad(LITERAL("\x80\x02}Na."));
	bad(LITERAL("\x80\x02N(\x85."));
	bad(LITERAL("\x80\x02(K\1(\x86."));
	bad(LITERAL("\x80\x02h\0."));
	bad(LITERAL("\x80\x02Nh\1."));
	bad(LITERAL("\x80\x02q\0N."));
	bad(LITERAL("\x80\x02t."));
	bad(LITERAL("\x80\x02"
		    "cmodule"));
	bad(LITERAL("\x80\x02"
		    "cmodule\nname"));
}

static void lengths(void)
{
	bad(LITERAL("\x80\x02X\xff\xff\xff\xff."));
	bad(LITERAL("\x80\x02X\2\0\0\0."));
	bad(LITERAL("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff."));
	bad(LITERAL("\x80\x04\x8e\0\0\0\0\0\0\0\x80."));
	bad(LITERAL("\x80\x04\x96\0\0\0\0\1\0\0\0."));
	bad(LITERAL("\x80\x02\x8b\xff\xff\xff\xff."));
	bad(LITERAL("\x80\x02\x8a\xff."));
	bad(LITERAL("\x80\x02Nr\xff\xff\xff\xff."));
	bad(LITERAL("\x80\x02Nr\x00\x10\x00\x00."));
	bad(LITERAL("\x80\x02Nq\x09."));
	bad(LITERAL("\x80\x02Nj\xff\xff\xff\xff."));
}

/* An opcode of one byte, again and again: 4 MB of memory, or an answer. */
static void many(const char *op, size_t op_len, int want)
{
	size_t n = 1000000;
	uint8_t *bytes = malloc(n * op_len + 4);
	struct pickle *p = NULL;

	CHECK(bytes);
	memcpy(bytes, "\x80\x02N", 3);
	for (size_t i = 0; i < n; i++)
		memcpy(bytes + 3 + i * op_len, op, op_len);
	bytes[3 + n * op_len] = '.';
	CHECK_EQ(pickle_parse(bytes, n * op_len + 4, MEMORY, &p), want);
	pickle_free(p);
	free(bytes);
}

static void bounded(void)
{
	many("]", 1, -E2BIG);
	many("(", 1, -E2BIG);
	many("N", 1, -E2BIG);
	many("\x85", 1, -E2BIG);  /* nested a million deep */
	many("2\x86", 2, -E2BIG); /* doubles each time */
	many("K\1"
	     "0",
	     3, 0);
	many("q\0", 2, 0);
	many("\x94", 1, -E2BIG);
}

/* Depth costs the parser nothing. */
static void deep(void)
{
	size_t n = 20000;
	uint8_t *bytes = malloc(n + 4);
	struct pickle *p = NULL;
	uint32_t ref;

	CHECK(bytes);
	memcpy(bytes, "\x80\x02N", 3);
	memset(bytes + 3, 0x85, n);
	bytes[3 + n] = '.';
	CHECK_EQ(pickle_parse(bytes, n + 4, MEMORY, &p), 0);
	ref = pickle_root(p);
	for (size_t i = 0; i < n; i++)
		ref = pickle_at(p, ref, 0);
	CHECK_EQ(pickle_kind(p, ref), PICKLE_NONE);
	pickle_free(p);
	free(bytes);
}

int main(void)
{
	graph();
	truncated();
	any_byte();
	opcodes();
	lengths();
	bounded();
	deep();
	return 0;
}
