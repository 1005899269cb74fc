/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going back through renames: a path that is the new name of one, or lies
 * below it, had the old name in its place before. A link's new name had its
 * old one, too, which may have been the only one on the remote.
 */
#include "engine/moves.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define BATCH 16

struct moved {
	char *from, *to;
	bool exchange;
};

int moves_add(struct moves *ms, const struct event *ev)
{
	struct moved *m;

	if ((ev->kind != EVENT_RENAME && ev->kind != EVENT_EXCHANGE &&
	     ev->kind != EVENT_LINK) ||
	    !ev->n_paths || !ev->path2)
		return 0;
	if (ms->n == ms->cap) {
		size_t cap = ms->cap ? 2 * ms->cap : BATCH;

		m = realloc(ms->all, cap * sizeof(*m));
		if (!m)
			return -ENOMEM;
		ms->all = m;
		ms->cap = cap;
	}
	m = &ms->all[ms->n++];
	*m = (struct moved){ strdup(ev->paths[0]), strdup(ev->path2),
			     ev->kind == EVENT_EXCHANGE };
	return m->from && m->to ? 0 : -ENOMEM;
}

void moves_fini(struct moves *ms)
{
	for (size_t i = 0; i < ms->n; i++) {
		free(ms->all[i].from);
		free(ms->all[i].to);
	}
	free(ms->all);
	*ms = (struct moves){ 0 };
}

static bool is_at_or_below(const char *path, const char *top)
{
	size_t len = strlen(top);

	return !strncmp(path, top, len) && (!path[len] || path[len] == '/');
}

/* The name before one move; *out NULL: the same. */
static int before(const struct moved *m, const char *path, char **out)
{
	const char *top, *other;

	*out = NULL;
	if (is_at_or_below(path, m->to)) {
		top = m->to;
		other = m->from;
	} else if (m->exchange && is_at_or_below(path, m->from)) {
		top = m->from;
		other = m->to;
	} else {
		return 0;
	}
	if (asprintf(out, "%s%s", other, path + strlen(top)) < 0) {
		*out = NULL;
		return -ENOMEM;
	}
	return 0;
}

static int names_before(const struct moves *ms, char **names, size_t *n)
{
	int err = 0;

	for (size_t i = ms->n; !err && i-- > 0;) {
		err = before(&ms->all[i], names[*n - 1], &names[*n]);
		*n += names[*n] != NULL;
	}
	return err;
}

int moves_back(const struct moves *ms, const char *path, path_fn *fn, void *arg)
{
	char **names = calloc(ms->n + 1, sizeof(*names));
	size_t n = 1;
	int err;

	if (!names)
		return -ENOMEM;
	names[0] = strdup(path);
	err = names[0] ? names_before(ms, names, &n) : -ENOMEM;
	for (size_t i = n; !err && i-- > 0;)
		err = fn(arg, names[i]);
	while (n)
		free(names[--n]);
	free(names);
	return err;
}
