/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Identity and watermarks, read and written. The identity also carries the
 * format of the database, so that a newer one is refused before anything
 * else of it is believed.
 */
#include "metadata/state.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>

#include "metadata/record.h"

#define STATE_IDENTITY "identity"
#define IDENTITY_LEN (1 + 4 + UUID_LEN + 8 + 8 + BOOT_ID_LEN)

static struct slice text(const char *s)
{
	return (struct slice){ s, strlen(s) };
}

static int decode_identity(void *arg, const void *val, size_t len)
{
	struct identity *id = arg;
	struct reader r = reader_of(val, len);
	const uint8_t *uuid, *boot;

	if (read_le(&r, 1) > RECORD_VERSION || read_le(&r, 4) > STATE_FORMAT)
		return -EOPNOTSUPP;
	uuid = read_bytes(&r, UUID_LEN);
	id->epoch = read_le(&r, 8);
	id->raised_from = read_le(&r, 8);
	boot = read_bytes(&r, BOOT_ID_LEN);
	if (r.bad || r.p != r.end)
		return -EUCLEAN;
	memcpy(id->uuid, uuid, UUID_LEN);
	memcpy(id->boot_id, boot, BOOT_ID_LEN);
	return 0;
}

int state_identity(struct store *s, struct identity *out)
{
	struct identity id = { 0 };
	int err = store_get(s, NULL, CF_STATE, text(STATE_IDENTITY),
			    decode_identity, &id);

	if (!err)
		*out = id;
	return err;
}

void state_put_identity(struct bytes *ops, const struct identity *id)
{
	uint8_t *p =
		op_put_room(ops, CF_STATE, text(STATE_IDENTITY), IDENTITY_LEN);

	if (!p)
		return;
	p[0] = RECORD_VERSION;
	put_le(p + 1, STATE_FORMAT, 4);
	memcpy(p + 5, id->uuid, UUID_LEN);
	put_le(p + 21, id->epoch, 8);
	put_le(p + 29, id->raised_from, 8);
	memcpy(p + 37, id->boot_id, BOOT_ID_LEN);
}

static int decode_number(void *arg, const void *val, size_t len)
{
	struct slice s;
	int err = plain_decode(val, len, &s);

	if (err)
		return err;
	if (s.len != 8)
		return -EUCLEAN;
	*(uint64_t *)arg = get_le(s.p, 8);
	return 0;
}

int state_number(struct store *s, const struct snapshot *snap, const char *key,
		 uint64_t *out)
{
	return store_get(s, snap, CF_STATE, text(key), decode_number, out);
}

uint64_t state_nvme_held(struct store *s, const struct snapshot *snap)
{
	uint64_t n = 0;
	int err = store_get_held(s, snap, CF_STATE, text(STATE_NVME),
				 decode_number, &n);

	return err ? 0 : n;
}

void state_put_number(struct bytes *ops, const char *key, uint64_t n)
{
	uint8_t *p = op_put_room(ops, CF_STATE, text(key), 9);

	if (!p)
		return;
	p[0] = RECORD_VERSION;
	put_le(p + 1, n, 8);
}

int boot_id_read(char out[BOOT_ID_LEN])
{
	CLEANUP(close_p)
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	return read(fd, out, BOOT_ID_LEN) == BOOT_ID_LEN ? 0 : -EIO;
}

int identity_new(struct identity *out)
{
	struct identity id = { 0 };
	int err;

	if (getrandom(id.uuid, UUID_LEN, 0) != UUID_LEN)
		return -EIO;
	err = boot_id_read(id.boot_id);
	if (!err)
		*out = id;
	return err;
}
