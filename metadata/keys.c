/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys, encoded. A name stands last in its key and needs no length: RocksDB
 * keeps that of the key.
 */
#include "metadata/keys.h"

#include <errno.h>

void key_number(struct key *k, uint64_t n)
{
	put_be64(k->b, n);
	k->len = 8;
}

void key_pair(struct key *k, uint64_t a, uint64_t b)
{
	put_be64(k->b, a);
	put_be64(k->b + 8, b);
	k->len = 16;
}

static int add_name(struct key *k, const char *name)
{
	size_t len = strnlen(name, META_NAME_MAX + 1);

	if (len > META_NAME_MAX)
		return -ENAMETOOLONG;
	if (!len)
		return -EINVAL;
	memcpy(k->b + k->len, name, len);
	k->len += len;
	return 0;
}

int key_named(struct key *k, uint64_t n, const char *name)
{
	key_number(k, n);
	return add_name(k, name);
}

int key_link(struct key *k, uint64_t ino, uint64_t parent, const char *name)
{
	key_pair(k, ino, parent);
	return add_name(k, name);
}

void key_copy(struct key *k, uint64_t version, enum copy_tier tier)
{
	put_be64(k->b, version);
	k->b[8] = (uint8_t)tier;
	k->len = 9;
}

int key_tail(const void *key, size_t klen, size_t n,
	     char name[META_NAME_MAX + 1])
{
	if (klen <= n || klen - n > META_NAME_MAX)
		return -EUCLEAN;
	memcpy(name, (const uint8_t *)key + n, klen - n);
	name[klen - n] = '\0';
	return 0;
}
