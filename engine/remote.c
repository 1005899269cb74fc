/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all kinds of remotes share: the registry of kinds, holds, what a mount
 * remembers of its remote, and the small arithmetic of attributes.
 */
#include "engine/remote.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/remote_dir.h"
#include "engine/tier.h"

#define NOTE_ID "remote.id"

/* ---- kinds ------------------------------------------------------------ */

/* A kind: its scheme, and how the rest of the spec becomes a remote. */
static const struct kind {
	const char *scheme;
	int (*open)(const char *rest, struct remote **out);
} kinds[] = {
	{ "dir", remote_dir_open },
};

static const struct kind *kind_of(const char *spec, const char **rest)
{
	const char *colon = strchr(spec, ':');
	size_t len = colon ? (size_t)(colon - spec) : 0;

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (!colon || strlen(kinds[i].scheme) != len ||
		    strncmp(spec, kinds[i].scheme, len))
			continue;
		*rest = colon + 1;
		return &kinds[i];
	}
	return NULL;
}

int remote_open(const char *spec, struct remote **out)
{
	const struct kind *kind;
	const char *rest = spec;

	if (spec[0] == '/')
		return remote_dir_open(spec, out);
	kind = kind_of(spec, &rest);
	if (kind)
		return kind->open(rest, out);
	return strncmp(spec, "s3:", 3) ? -EINVAL : -EOPNOTSUPP;
}

struct remote *remote_hold(struct remote *r)
{
	r->n_holds++;
	return r;
}

void remote_put(struct remote *r)
{
	if (r && --r->n_holds == 0)
		r->ops->close(r);
}

/* ---- what a mount knows of its remote --------------------------------- */

int remote_attach(struct meta *m, struct remote *r, char *why, size_t why_len)
{
	char id[REMOTE_ID_ROOM] = "";
	size_t len = sizeof(id) - 1;
	bool first;
	int err;

	err = meta_note(m, NOTE_ID, id, &len);
	first = err == -ENOENT || (!err && !len);
	if (err && err != -ENOENT) {
		snprintf(why, why_len, "cannot read what is known of %s: %s",
			 r->name, strerror(-err));
		return err;
	}
	id[first ? 0 : len] = '\0';
	err = r->ops->attach(r, id, why, why_len);
	if (err || !first)
		return err;
	err = meta_set_note(m, NOTE_ID, id, strlen(id));
	if (err)
		snprintf(why, why_len, "cannot note the marker of %s: %s",
			 r->name, strerror(-err));
	return err;
}

int remote_forget(struct meta *m)
{
	return meta_set_note(m, NOTE_ID, "", 0);
}

void remote_identity(const struct meta *m, uint64_t version,
		     char out[REMOTE_IDENTITY_LEN + 1])
{
	const uint8_t *uuid = meta_uuid(m);

	for (int i = 0; i < 16; i++)
		snprintf(out + 2 * (size_t)i, 3, "%02x", uuid[i]);
	snprintf(out + 32, 18, "-%016llx", (unsigned long long)version);
}

/* ---- attributes ------------------------------------------------------- */

void remote_attr_fini(struct remote_attr *a)
{
	for (uint32_t i = 0; i < a->n_xattrs; i++) {
		free(a->xattrs[i].name);
		free(a->xattrs[i].value);
	}
	free(a->xattrs);
	free(a->crcs);
	free(a->target);
	*a = (struct remote_attr){ 0 };
}

bool remote_attr_verified(const struct remote_attr *a)
{
	return a->identity[0] && a->n_chunks == N_CHUNKS(a->size);
}

/* ---- what records know them by ---------------------------------------- */

#define OTHERS '~' /* no identity begins so */

void remote_object_of_others(uint64_t size, int64_t mtime_ns, int64_t or_ns,
			     char out[64])
{
	snprintf(out, 64, "%c%llx-%llx-%llx", OTHERS, (unsigned long long)size,
		 (unsigned long long)mtime_ns, (unsigned long long)or_ns);
}

void remote_object_of(const struct remote_attr *a, char out[64])
{
	if (a->identity[0])
		memcpy(out, a->identity, sizeof(a->identity));
	else
		remote_object_of_others(a->size, a->mtime_ns, a->mtime_ns, out);
}

bool remote_object_is_of_others(const char *object)
{
	return !object[0] || object[0] == OTHERS;
}

bool remote_object_fits(const char *object, const struct remote_attr *a)
{
	unsigned long long size, mtime[2];

	if (!remote_object_is_of_others(object))
		return !strcmp(object, a->identity);
	if (a->identity[0])
		return false;
	if (!object[0])
		return true;
	if (sscanf(object + 1, "%llx-%llx-%llx", &size, &mtime[0], &mtime[1]) !=
	    3)
		return false;
	return size == a->size && (mtime[0] == (uint64_t)a->mtime_ns ||
				   mtime[1] == (uint64_t)a->mtime_ns);
}

/* ---- xattrs ----------------------------------------------------------- */

static struct remote_xattr *find_xattr(const struct remote_attr *a,
				       const char *name)
{
	for (uint32_t i = 0; i < a->n_xattrs; i++)
		if (!strcmp(a->xattrs[i].name, name))
			return &a->xattrs[i];
	return NULL;
}

static int add_xattr(struct remote_attr *a, const char *name,
		     struct remote_xattr **out)
{
	size_t n = a->n_xattrs + (size_t)1;
	struct remote_xattr *all = realloc(a->xattrs, n * sizeof(*all));

	if (!all)
		return -ENOMEM;
	a->xattrs = all;
	all[n - 1] = (struct remote_xattr){ .name = strdup(name) };
	if (!all[n - 1].name)
		return -ENOMEM;
	a->n_xattrs++;
	*out = &all[n - 1];
	return 0;
}

int remote_attr_set_xattr(struct remote_attr *a, const char *name,
			  const void *value, size_t len)
{
	struct remote_xattr *x = find_xattr(a, name);
	void *copy = malloc(len ? len : 1);
	int err = copy ? 0 : -ENOMEM;

	if (!err && !x)
		err = add_xattr(a, name, &x);
	if (err) {
		free(copy);
		return err;
	}
	if (len)
		memcpy(copy, value, len);
	free(x->value);
	x->value = copy;
	x->len = len;
	return 0;
}

void remote_attr_del_xattr(struct remote_attr *a, const char *name)
{
	struct remote_xattr *x = find_xattr(a, name);

	if (!x)
		return;
	free(x->name);
	free(x->value);
	*x = a->xattrs[--a->n_xattrs];
}

bool remote_attr_same_xattrs(const struct remote_attr *a,
			     const struct remote_attr *b)
{
	if (a->n_xattrs != b->n_xattrs)
		return false;
	for (uint32_t i = 0; i < a->n_xattrs; i++) {
		const struct remote_xattr *x = &a->xattrs[i];
		const struct remote_xattr *y = find_xattr(b, x->name);

		if (!y || x->len != y->len ||
		    (x->len && memcmp(x->value, y->value, x->len)))
			return false;
	}
	return true;
}
