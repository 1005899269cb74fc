/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tier that fails on purpose, round a real one: for tests, and as a mount
 * option for whoever wants to drill.
 *
 * FORMAT of the spec: rules separated by commas; words by colons.
 *
 *   rule   = operation ":" fault { ":" when }
 *   operation = write sync preallocate create open remove sync_names
 *   fault  = error=NAME    fails with that errno: EIO ENOSPC EDQUOT EROFS
 *                          ETIMEDOUT ENODEV EACCES EMFILE, or a number
 *          | full          the same as error=ENOSPC; a write first writes
 *                          its first half
 *          | delay=TIME    waits, then goes on: 50ms, 2s, 100us
 *          | short         (write) the first attempt writes half; the rest
 *                          follows, and nobody need notice
 *          | torn          (write) only the first half is written; success
 *                          is reported
 *          | flip          (write) one bit of it is written wrong; success
 *                          is reported
 *   when   = after=N       the first N calls are spared (default 0)
 *          | times=N       happens N times, then never again (default:
 *                          always)
 *
 * Example: write:error=EIO:after=10:times=3,sync:delay=50ms
 *
 * Several rules for one operation are looked at in their order; delays add
 * up, and the first other fault that is due happens. A delay holds up the
 * caller. Counting is exact also when threads call at once.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/tier.h"

#define N_RULES_MAX 16
#define BLOCK_LEN 4096u

enum operation { WRITE, SYNC, PREALLOCATE, CREATE, OPEN, REMOVE, SYNC_NAMES };
static const char *const operations[] = {
	"write", "sync",   "preallocate", "create",
	"open",  "remove", "sync_names",
};

enum fault { NONE, ERROR, FULL, DELAY, SHORT, TORN, FLIP };

struct rule {
	enum operation operation;
	enum fault fault;
	int error;         /* ERROR, FULL: positive errno */
	uint64_t delay_ns; /* DELAY */
	uint64_t after;
	uint64_t times;
	uint64_t n_calls; /* guarded by the tier's lock */
};

struct tier_faulty {
	struct tier base;
	struct tier *real; /* owned */
	struct mutex lock;
	size_t n_rules;
	struct rule rules[N_RULES_MAX];
};

/* One write on its way through the real tier in place of the caller's. */
struct faulty_io {
	struct tier_io io;
	struct tier_io *wanted;
	void *copy; /* FLIP: what is written */
	int res;    /* what to report if the real write worked */
};

static struct tier_faulty *faulty_of(struct tier *t)
{
	return CONTAINER_OF(t, struct tier_faulty, base);
}

/* ---- the spec ---- */

static const struct {
	const char *name;
	int error;
} errors[] = {
	{ "EIO", EIO },       { "ENOSPC", ENOSPC }, { "EDQUOT", EDQUOT },
	{ "EROFS", EROFS },   { "ENODEV", ENODEV }, { "ETIMEDOUT", ETIMEDOUT },
	{ "EACCES", EACCES }, { "EMFILE", EMFILE },
};

static int parse_number(const char *text, uint64_t *out, const char **end)
{
	char *stop;
	unsigned long long v;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	v = strtoull(text, &stop, 10);
	if (errno)
		return -EINVAL;
	*out = v;
	*end = stop;
	return 0;
}

static int parse_count(const char *text, uint64_t *out)
{
	const char *end;

	if (parse_number(text, out, &end) || *end)
		return -EINVAL;
	return 0;
}

static int parse_error(const char *text, int *out)
{
	uint64_t v;

	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (!strcmp(text, errors[i].name)) {
			*out = errors[i].error;
			return 0;
		}
	if (parse_count(text, &v) || !v || v > 4095)
		return -EINVAL;
	*out = (int)v;
	return 0;
}

static int parse_delay(const char *text, uint64_t *out_ns)
{
	static const struct {
		const char *unit;
		uint64_t ns;
	} units[] = { { "us", 1000 }, { "ms", 1000000 }, { "s", 1000000000 } };
	const char *unit;
	uint64_t v;

	if (parse_number(text, &v, &unit) || v > 3600000000u)
		return -EINVAL;
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (!strcmp(unit, units[i].unit)) {
			*out_ns = v * units[i].ns;
			return 0;
		}
	return -EINVAL;
}

static int parse_fault(struct rule *r, const char *word)
{
	static const struct {
		const char *name;
		enum fault fault;
	} plain[] = { { "short", SHORT }, { "torn", TORN }, { "flip", FLIP } };

	if (!strncmp(word, "error=", 6)) {
		r->fault = ERROR;
		return parse_error(word + 6, &r->error);
	}
	if (!strncmp(word, "delay=", 6)) {
		r->fault = DELAY;
		return parse_delay(word + 6, &r->delay_ns);
	}
	if (!strcmp(word, "full")) {
		r->fault = r->operation == WRITE ? FULL : ERROR;
		r->error = ENOSPC;
		return 0;
	}
	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
		if (!strcmp(word, plain[i].name) && r->operation == WRITE) {
			r->fault = plain[i].fault;
			return 0;
		}
	return -EINVAL;
}

static int parse_when(struct rule *r, const char *word)
{
	if (!strncmp(word, "after=", 6))
		return parse_count(word + 6, &r->after);
	if (!strncmp(word, "times=", 6))
		return parse_count(word + 6, &r->times);
	return -EINVAL;
}

static int parse_operation(struct rule *r, const char *word)
{
	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++)
		if (!strcmp(word, operations[i])) {
			r->operation = (enum operation)i;
			return 0;
		}
	return -EINVAL;
}

static int parse_rule(struct rule *r, char *text)
{
	char *rest = text, *word;
	int rc;

	*r = (struct rule){ .times = UINT64_MAX };
	rc = parse_operation(r, strsep(&rest, ":"));
	if (rc || !rest)
		return -EINVAL;
	rc = parse_fault(r, strsep(&rest, ":"));
	while (!rc && (word = strsep(&rest, ":")))
		rc = parse_when(r, word);
	return rc;
}

static int parse_spec(struct tier_faulty *f, const char *spec)
{
	CLEANUP(free_p) char *text = strdup(spec);
	char *rest = text, *rule;

	if (!text)
		return -ENOMEM;
	while ((rule = strsep(&rest, ","))) {
		if (f->n_rules == N_RULES_MAX)
			return -EINVAL;
		if (parse_rule(&f->rules[f->n_rules], rule))
			return -EINVAL;
		f->n_rules++;
	}
	return 0;
}

/* ---- what is due ---- */

static bool due(struct rule *r)
{
	uint64_t n = r->n_calls++;

	return n >= r->after && n - r->after < r->times;
}

static void wait_ns(uint64_t ns)
{
	struct timespec ts = { (time_t)(ns / 1000000000),
			       (long)(ns % 1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

/* Waits what is to be waited; the fault that is due, and its errno. */
static enum fault strike(struct tier_faulty *f, enum operation op, int *error)
{
	enum fault fault = NONE;
	uint64_t delay_ns = 0;

	mutex_lock(&f->lock);
	for (size_t i = 0; i < f->n_rules; i++) {
		struct rule *r = &f->rules[i];

		if (r->operation != op || !due(r))
			continue;
		if (r->fault == DELAY) {
			delay_ns += r->delay_ns;
		} else if (fault == NONE) {
			fault = r->fault;
			*error = r->error;
		}
	}
	mutex_unlock(&f->lock);
	if (delay_ns)
		wait_ns(delay_ns);
	return fault;
}

/* For all but write: 0, or the error to return. */
static int strike_plain(struct tier_faulty *f, enum operation op)
{
	int error = 0;

	return strike(f, op, &error) == NONE ? 0 : -error;
}

/* ---- operations ---- */

static int faulty_create(struct tier *t, uint64_t id, int flags, int *fd)
{
	struct tier_faulty *f = faulty_of(t);
	int rc = strike_plain(f, CREATE);

	return rc ? rc : f->real->ops->create(f->real, id, flags, fd);
}

static int faulty_open(struct tier *t, uint64_t id, int flags, int *fd)
{
	struct tier_faulty *f = faulty_of(t);
	int rc = strike_plain(f, OPEN);

	return rc ? rc : f->real->ops->open(f->real, id, flags, fd);
}

static int faulty_remove(struct tier *t, uint64_t id)
{
	struct tier_faulty *f = faulty_of(t);
	int rc = strike_plain(f, REMOVE);

	return rc ? rc : f->real->ops->remove(f->real, id);
}

static int faulty_preallocate(struct tier *t, int fd, uint64_t off,
			      uint64_t len)
{
	struct tier_faulty *f = faulty_of(t);
	int rc = strike_plain(f, PREALLOCATE);

	return rc ? rc : f->real->ops->preallocate(f->real, fd, off, len);
}

static int faulty_trim(struct tier *t, int fd, uint64_t size)
{
	struct tier *real = faulty_of(t)->real;

	return real->ops->trim(real, fd, size);
}

static int faulty_sync(struct tier *t, int fd)
{
	struct tier_faulty *f = faulty_of(t);
	int rc = strike_plain(f, SYNC);

	return rc ? rc : f->real->ops->sync(f->real, fd);
}

static int faulty_sync_names(struct tier *t)
{
	struct tier_faulty *f = faulty_of(t);
	int rc = strike_plain(f, SYNC_NAMES);

	return rc ? rc : f->real->ops->sync_names(f->real);
}

static int faulty_room(struct tier *t, struct tier_room *out)
{
	struct tier *real = faulty_of(t)->real;

	return real->ops->room(real, out);
}

static int faulty_each(struct tier *t,
		       int (*fn)(void *arg, uint64_t id, uint64_t blocks),
		       void *arg)
{
	struct tier *real = faulty_of(t)->real;

	return real->ops->each(real, fn, arg);
}

static void io_finish(struct faulty_io *w, int res)
{
	struct tier_io *wanted = w->wanted;

	wanted->res = res ? res : w->res;
	free(w->copy);
	free(w);
	wanted->done(wanted);
}

static void io_done(struct tier_io *io)
{
	struct faulty_io *w = CONTAINER_OF(io, struct faulty_io, io);

	io_finish(w, io->res);
}

static size_t half_of(size_t len)
{
	return len / 2 / BLOCK_LEN * BLOCK_LEN;
}

static int flip_bit(struct faulty_io *w)
{
	size_t len = w->io.len;

	/* The buffer may be a read-only mapping, and stays right anyway. */
	if (posix_memalign(&w->copy, BLOCK_LEN, len))
		return -ENOMEM;
	memcpy(w->copy, w->io.buf, len);
	*(unsigned char *)w->copy ^= 1u << 3;
	w->io.buf = w->copy;
	return 0;
}

/* Turns the write into what the fault makes of it. */
static int io_spoil(struct faulty_io *w, enum fault fault, int error)
{
	switch (fault) {
	case ERROR:
		w->io.len = 0;
		w->res = -error;
		return 0;
	case FULL:
		w->io.len = half_of(w->io.len);
		w->res = -error;
		return 0;
	case TORN:
		w->io.len = half_of(w->io.len);
		return 0;
	case SHORT:
		w->io.first_len = half_of(w->io.len);
		return 0;
	case FLIP:
		return flip_bit(w);
	default:
		return 0;
	}
}

static int io_start(struct tier_faulty *f, struct faulty_io *w,
		    enum fault fault, int error)
{
	int rc = io_spoil(w, fault, error);

	if (rc)
		return rc;
	if (w->io.len)
		return f->real->ops->write(f->real, &w->io);
	io_finish(w, 0);
	return 0;
}

static int faulty_write(struct tier *t, struct tier_io *io)
{
	struct tier_faulty *f = faulty_of(t);
	struct faulty_io *w;
	enum fault fault;
	int error = 0, rc;

	fault = strike(f, WRITE, &error);
	if (fault == NONE)
		return f->real->ops->write(f->real, io);
	w = calloc(1, sizeof(*w));
	if (!w)
		return -ENOMEM;
	w->wanted = io;
	w->io = *io;
	w->io.done = io_done;
	rc = io_start(f, w, fault, error);
	if (rc) {
		free(w->copy);
		free(w);
	}
	return rc;
}

static void faulty_close(struct tier *t)
{
	struct tier_faulty *f = faulty_of(t);

	f->real->ops->close(f->real);
	mutex_fini(&f->lock);
	free((char *)f->base.io);
	free(f);
}

/*
 * One table for each kind of real tier: the name is the real one's, so that
 * nobody who asks what a tier is gets another answer.
 */
#define FAULTY_OPS(real_name)                                           \
	{                                                               \
		.name = (real_name), .create = faulty_create,           \
		.open = faulty_open, .remove = faulty_remove,           \
		.preallocate = faulty_preallocate, .trim = faulty_trim, \
		.write = faulty_write, .sync = faulty_sync,             \
		.sync_names = faulty_sync_names, .room = faulty_room,   \
		.each = faulty_each, .close = faulty_close,             \
	}

static const struct tier_ops faulty_ops[] = {
	FAULTY_OPS("dram"),
	FAULTY_OPS("nvme"),
};

static const struct tier_ops *ops_for(const struct tier *real)
{
	size_t n = sizeof(faulty_ops) / sizeof(faulty_ops[0]);

	for (size_t i = 0; i < n; i++)
		if (!strcmp(faulty_ops[i].name, real->ops->name))
			return &faulty_ops[i];
	return &faulty_ops[0];
}

int tier_faulty_open(struct tier *real, const char *spec, struct tier **out)
{
	struct tier_faulty *f = calloc(1, sizeof(*f));
	char *io = NULL;
	int rc;

	if (!f)
		return -ENOMEM;
	rc = parse_spec(f, spec);
	if (!rc && asprintf(&io, "%s, faulty: %s", real->io, spec) < 0)
		rc = -ENOMEM;
	if (rc) {
		free(f); /* real stays the caller's */
		return rc;
	}
	mutex_init(&f->lock);
	f->base = (struct tier){ .ops = ops_for(real),
				 .dir = real->dir,
				 .io = io };
	f->real = real;
	*out = &f->base;
	return 0;
}
