/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The torch zip layout, byte by byte as a zip reader sees it: places, names,
 * sums and lengths in descriptors and directory, with a pickle of known and of
 * unknown size. That PyTorch reads it is tests/framework's.
 */
#include "layout_fixture.h"

#include <zlib.h>

static uint8_t big[100000];

static int serialise(void *arg, const void **bytes, size_t *len)
{
	*bytes = arg;
	*len = strlen(arg);
	return 0;
}

static struct ckpt_provider *example(struct ckpt_provider *pickle)
{
	struct ckpt_torch *t;
	struct ckpt_provider *p;
	int r;

	CHECK_EQ(ckpt_torch_new("root", &t), 0);
	r = ckpt_torch_storage(t, "0", ckpt_memory(big, sizeof(big)));
	CHECK_EQ(r, 0);
	r = ckpt_torch_storage(t, "1", ckpt_memory(big, 0));
	CHECK_EQ(r, 0);
	r = ckpt_torch_storage(t, "2", ckpt_memory_copied("xyz", 3));
	CHECK_EQ(r, 0);
	CHECK_EQ(ckpt_torch_pickle(t, pickle), 0);
	CHECK_EQ(ckpt_torch_finish(t, &p), 0);
	return p;
}

struct expected {
	const char *name;
	const void *bytes;
	size_t len;
};

static const struct expected expected[] = {
	{ "root/data/0", big, sizeof(big) },
	{ "root/data/1", "", 0 },
	{ "root/data/2", "xyz", 3 },
	{ "root/byteorder", "little", 6 },
	{ "root/.format_version", "1", 1 },
	{ "root/.storage_alignment", "64", 2 },
	{ "root/version", "3\n", 2 },
	{ "root/data.pkl", "pickle", 6 },
};
#define N_EXPECTED (sizeof(expected) / sizeof(expected[0]))

/* The local header at `at`, the data, the descriptor; where the next begins. */
static const uint8_t *check_local(const uint8_t *file, const uint8_t *at,
				  const struct expected *e)
{
	size_t name_len = get(at + 26, 2), extra_len = get(at + 28, 2);
	const uint8_t *data = at + 30 + name_len + extra_len;

	CHECK_EQ(get(at, 4), 0x04034b50);
	CHECK_EQ(name_len, strlen(e->name));
	CHECK(!memcmp(at + 30, e->name, name_len));
	CHECK_EQ((data - file) % 64, 0);
	CHECK(!memcmp(data, e->bytes, e->len));
	if (!e->len)
		return data;
	CHECK_EQ(get(at + 6, 2) & 8, 8);
	at = data + e->len;
	CHECK_EQ(get(at, 4), 0x08074b50);
	CHECK_EQ(get(at + 4, 4), crc32(0, e->bytes, (uInt)e->len));
	CHECK_EQ(get(at + 8, 4), e->len);
	CHECK_EQ(get(at + 12, 4), e->len);
	return at + 16;
}

/* The entry at `at`; where the next begins. */
static const uint8_t *check_entry(const uint8_t *at, uint64_t off,
				  const struct expected *e)
{
	size_t name_len = get(at + 28, 2);

	CHECK_EQ(get(at, 4), 0x02014b50);
	CHECK_EQ(get(at + 16, 4), crc32(0, e->bytes, (uInt)e->len));
	CHECK_EQ(get(at + 20, 4), e->len);
	CHECK_EQ(get(at + 24, 4), e->len);
	CHECK_EQ(name_len, strlen(e->name));
	CHECK_EQ(get(at + 42, 4), off);
	CHECK(!memcmp(at + 46, e->name, name_len));
	return at + 46 + name_len + get(at + 30, 2) + get(at + 32, 2);
}

static void check_file(const uint8_t *file, size_t len)
{
	const uint8_t *at = file, *entry, *end = file + len - 22;
	uint64_t off[N_EXPECTED];

	for (size_t i = 0; i < N_EXPECTED; i++) {
		off[i] = (uint64_t)(at - file);
		at = check_local(file, at, &expected[i]);
	}
	entry = at;
	for (size_t i = 0; i < N_EXPECTED; i++)
		entry = check_entry(entry, off[i], &expected[i]);
	CHECK_EQ(get(end, 4), 0x06054b50);
	CHECK_EQ(get(end + 10, 2), N_EXPECTED);
	CHECK_EQ(get(end + 12, 4), entry - at);
	CHECK_EQ(get(end + 16, 4), at - file);
	CHECK_EQ(get(entry, 4), 0x06064b50);
	CHECK_EQ(get(entry + 56, 4), 0x07064b50);
	CHECK_EQ(get(entry + 56 + 8, 8), entry - file);
}

static void is_a_zip(struct ckpt_provider *pickle)
{
	uint8_t *file;
	size_t len = layout_save(example(pickle), &file);

	check_file(file, len);
	free(file);
}

static void from_a_slow_device(void)
{
	struct ckpt_slow_device *device;
	struct ckpt_torch *t;
	struct ckpt_provider *p;
	uint8_t *file;
	const uint8_t *data = (const uint8_t *)"";
	int r;

	CHECK_EQ(ckpt_slow_device_new(1 << 30, &device), 0);
	CHECK_EQ(ckpt_torch_new("root", &t), 0);
	r = ckpt_torch_storage(t, "0", ckpt_slow(device, big, sizeof(big)));
	CHECK_EQ(r, 0);
	CHECK_EQ(ckpt_torch_pickle(t, ckpt_memory_copied("pickle", 6)), 0);
	CHECK_EQ(ckpt_torch_finish(t, &p), 0);
	layout_save(p, &file);
	data = file + 64;
	CHECK(!memcmp(data, big, sizeof(big)));
	CHECK_EQ(get(data + sizeof(big) + 4, 4), crc32(0, big, sizeof(big)));
	free(file);
	ckpt_slow_device_free(device);
}

/* Every call takes its provider over, whatever it says. */
static void wrong_use(void)
{
	struct ckpt_torch *t;
	struct ckpt_provider *p;
	int n = 0, r;

	CHECK_EQ(ckpt_torch_new("", &t), -EINVAL);
	CHECK_EQ(ckpt_torch_new("a/b", &t), -EINVAL);
	CHECK_EQ(ckpt_torch_new("root", &t), 0);
	CHECK_EQ(ckpt_torch_storage(t, "0", NULL), -ENOMEM);
	CHECK_EQ(ckpt_torch_storage(t, "", watched(1, &n)), -EINVAL);
	CHECK_EQ(n, 1);
	r = ckpt_torch_storage(t, "0", watched(CKPT_SIZE_UNKNOWN, &n));
	CHECK_EQ(r, -EINVAL);
	CHECK_EQ(n, 2);
	CHECK_EQ(ckpt_torch_storage(t, "0", watched(5, &n)), 0);
	CHECK_EQ(ckpt_torch_storage(t, "0", watched(5, &n)), 0);
	CHECK_EQ(ckpt_torch_pickle(t, watched(5, &n)), 0);
	CHECK_EQ(ckpt_torch_pickle(t, watched(5, &n)), -EEXIST);
	CHECK_EQ(n, 3);
	CHECK_EQ(ckpt_torch_finish(t, &p), -EEXIST);
	CHECK_EQ(n, 6);

	CHECK_EQ(ckpt_torch_new("root", &t), 0);
	CHECK_EQ(ckpt_torch_finish(t, &p), -EINVAL); /* no pickle */
	ckpt_torch_free(NULL);
}

/* Given up before it was added anywhere. */
static void never_added(void)
{
	struct ckpt_torch *t;
	struct ckpt_provider *p;
	int n = 0;

	CHECK_EQ(ckpt_torch_new("archive", &t), 0);
	CHECK_EQ(ckpt_torch_storage(t, "0", watched(UINT64_C(1) << 40, &n)), 0);
	CHECK_EQ(ckpt_torch_storage(t, "1", watched(1, &n)), 0);
	CHECK_EQ(ckpt_torch_pickle(t, watched(CKPT_SIZE_UNKNOWN, &n)), 0);
	CHECK_EQ(ckpt_torch_finish(t, &p), 0);
	p->ops->release(p);
	CHECK_EQ(n, 3);
}

int main(void)
{
	char pickle[] = "pickle";

	check_tmpdir();
	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (uint8_t)(i * 2654435761u >> 13);
	is_a_zip(ckpt_memory_copied("pickle", 6));
	is_a_zip(ckpt_object(serialise, NULL, pickle));
	from_a_slow_device();
	wrong_use();
	never_added();
	return 0;
}
