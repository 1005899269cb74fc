/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streamer thread: takes runs of filled chunks, oldest file first, and has
 * flush.c write them. stream.h has the idea and the invariants.
 */
#include "engine/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/core.h"
#include "engine/thread.h"
#include "metadata/fault.h"

#define RUN_MOST 8u /* chunks at once: what is ended is not waited for long */

enum chunk_state { CHUNK_EMPTY, CHUNK_READY, CHUNK_RUNNING, CHUNK_WRITTEN };

struct stream {
	TAILQ_ENTRY(stream) link;
	uint64_t id;             /* version, and its file on NVMe */
	struct backing *backing; /* holds a reference */
	uint32_t n;              /* chunks there is room for */
	uint32_t *filled;        /* bytes of each that were said to be filled */
	uint8_t *state;          /* enum chunk_state */
	uint32_t *crcs;
	uint32_t first; /* none is ready before it */
	bool running, ended;
	bool dropped; /* the thread removes it, and its file */
};

struct run {
	struct stream *s;
	uint32_t from, to;
};

void streams_init(struct streams *s)
{
	mutex_init(&s->lock);
	condition_init(&s->work);
	condition_init(&s->rested);
	TAILQ_INIT(&s->list);
}

static void stream_free(struct engine *e, struct stream *s)
{
	if (!s)
		return;
	backing_put(e, s->backing);
	free(s->filled);
	free(s->state);
	free(s->crcs);
	free(s);
}

void streams_fini(struct engine *e)
{
	struct stream *s;

	while ((s = TAILQ_FIRST(&e->streams.list))) {
		TAILQ_REMOVE(&e->streams.list, s, link);
		s->backing = NULL; /* backings_fini() frees it */
		stream_free(e, s);
	}
	pthread_cond_destroy(&e->streams.work);
	pthread_cond_destroy(&e->streams.rested);
	mutex_fini(&e->streams.lock);
}

/* ---- what is filled ---------------------------------------------------- */

static struct stream *find_locked(struct streams *ss, uint64_t id)
{
	struct stream *s;

	TAILQ_FOREACH(s, &ss->list, link)
	if (s->id == id)
		return s;
	return NULL;
}

static int grow(void *array, size_t size, uint32_t from, uint32_t to)
{
	void **p = array;
	void *bigger = reallocarray(*p, to, size);

	if (!bigger)
		return -ENOMEM;
	memset((char *)bigger + size * from, 0, size * (to - from));
	*p = bigger;
	return 0;
}

static int room_for(struct stream *s, uint32_t n)
{
	uint32_t room = s->n ? s->n : 64;

	if (n <= s->n)
		return 0;
	while (room < n)
		room *= 2;
	if (grow(&s->filled, sizeof(*s->filled), s->n, room) ||
	    grow(&s->state, sizeof(*s->state), s->n, room) ||
	    grow(&s->crcs, sizeof(*s->crcs), s->n, room))
		return -ENOMEM;
	s->n = room;
	return 0;
}

static struct stream *add_locked(struct streams *ss, uint64_t id,
				 struct backing *b)
{
	struct stream *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->id = id;
	s->backing = b;
	TAILQ_INSERT_TAIL(&ss->list, s, link);
	return s;
}

/* Bytes said twice count twice: the chunk may be taken too early, which the
 * sums at the seal find. */
static bool fill_chunk(struct stream *s, uint32_t i, uint64_t len)
{
	uint64_t sum = s->filled[i] + len;

	s->filled[i] = sum < CHUNK_LEN ? (uint32_t)sum : (uint32_t)CHUNK_LEN;
	if (s->filled[i] < CHUNK_LEN || s->state[i] != CHUNK_EMPTY)
		return false;
	s->state[i] = CHUNK_READY;
	if (i < s->first)
		s->first = i;
	return true;
}

static bool fill_locked(struct stream *s, uint64_t off, uint64_t end)
{
	bool ready = false;

	if (room_for(s, (uint32_t)N_CHUNKS(end)))
		return false;
	while (off < end) {
		uint32_t i = (uint32_t)(off / CHUNK_LEN);
		uint64_t to = (i + UINT64_C(1)) * CHUNK_LEN;

		if (to > end)
			to = end;
		ready |= fill_chunk(s, i, to - off);
		off = to;
	}
	return ready;
}

void stream_filled(struct engine *e, uint64_t id, struct backing *b,
		   uint64_t off, uint64_t len)
{
	struct streams *ss = &e->streams;
	struct stream *s;

	if (!len || off > ENGINE_FILE_MAX || len > ENGINE_FILE_MAX - off)
		return;
	mutex_lock(&ss->lock);
	s = find_locked(ss, id);
	if (!s && !ss->stop) {
		s = add_locked(ss, id, b);
		if (s)
			backing_get(e, b);
	}
	if (s && !s->ended && fill_locked(s, off, off + len))
		pthread_cond_signal(&ss->work);
	mutex_unlock(&ss->lock);
}

void file_filled(struct engine *e, uint64_t ino, uint64_t off, uint64_t len)
{
	struct inode *in = inode_find(e, ino);
	struct stat st;

	if (!in)
		return;
	mutex_lock(&in->lock);
	/* A spilled file is where it belongs already. */
	if (in->written && in->backing && in->backing->where == BACKING_DRAM &&
	    !fstat(in->ro_fd, &st) && off < (uint64_t)st.st_size) {
		if (len > (uint64_t)st.st_size - off)
			len = (uint64_t)st.st_size - off;
		in->streamed = true;
		stream_filled(e, in->next_version, in->backing, off, len);
	}
	mutex_unlock(&in->lock);
	inode_put(e, in);
}

/* ---- the end ----------------------------------------------------------- */

/* The thread keeps its buffers as long as there is any. */
static void remove_locked(struct streams *ss, struct stream *s)
{
	TAILQ_REMOVE(&ss->list, s, link);
	if (TAILQ_EMPTY(&ss->list))
		pthread_cond_signal(&ss->work);
}

static void give(struct stream *s, struct flush_have *have)
{
	for (uint32_t i = 0; i < s->n; i++)
		s->state[i] = s->state[i] == CHUNK_WRITTEN;
	*have = (struct flush_have){ .n = s->n,
				     .on = MOVE(s->state),
				     .crcs = MOVE(s->crcs) };
}

void stream_end(struct engine *e, uint64_t id, struct flush_have *have)
{
	struct streams *ss = &e->streams;
	struct stream *s;

	memset(have, 0, sizeof(*have));
	mutex_lock(&ss->lock);
	s = find_locked(ss, id);
	if (s) {
		s->ended = true;
		while (s->running)
			pthread_cond_wait(&ss->rested, &ss->lock.m);
		remove_locked(ss, s);
	}
	mutex_unlock(&ss->lock);
	if (s)
		give(s, have);
	stream_free(e, s);
}

/* Locks of inodes are held, which a write to a slow NVMe must not hold up. */
void stream_drop(struct engine *e, uint64_t id)
{
	struct streams *ss = &e->streams;
	struct stream *s;
	bool later;

	mutex_lock(&ss->lock);
	s = find_locked(ss, id);
	later = s && s->running;
	if (s)
		s->ended = s->dropped = true;
	if (s && !later)
		remove_locked(ss, s);
	mutex_unlock(&ss->lock);
	if (later)
		return;
	stream_free(e, s);
	(void)!e->nvme->ops->remove(e->nvme, id);
}

void flush_have_fini(struct flush_have *have)
{
	free(have->on);
	free(have->crcs);
}

/* ---- the thread -------------------------------------------------------- */

/* The first run of ready chunks of s; s->first moves up to it. */
static bool find_run(struct stream *s, struct run *out)
{
	uint32_t i = s->first;

	while (i < s->n && s->state[i] != CHUNK_READY)
		i++;
	s->first = i;
	if (i == s->n || s->ended)
		return false;
	*out = (struct run){ .s = s, .from = i };
	while (i < s->n && s->state[i] == CHUNK_READY &&
	       i - s->first < RUN_MOST)
		s->state[i++] = CHUNK_RUNNING;
	out->to = i;
	s->running = true;
	return true;
}

static bool take_run(struct streams *ss, struct flush_buffers *buffers,
		     struct run *out)
{
	struct stream *s = NULL;
	bool stop;

	mutex_lock(&ss->lock);
	while (!ss->stop) {
		TAILQ_FOREACH(s, &ss->list, link)
		if (find_run(s, out))
			break;
		if (s)
			break;
		if (TAILQ_EMPTY(&ss->list))
			flush_buffers_fini(buffers);
		pthread_cond_wait(&ss->work, &ss->lock.m);
	}
	stop = ss->stop;
	mutex_unlock(&ss->lock);
	return !stop;
}

static int write_run(struct engine *e, const struct run *run,
		     struct flush_buffers *buffers, uint32_t *crcs)
{
	struct tier *src = e->dram;
	CLEANUP(close_p) int fd = -1;
	struct flush_job job = {
		.size = (uint64_t)run->to * CHUNK_LEN,
		.from = (uint64_t)run->from * CHUNK_LEN,
		.part = true,
		.dst = e->nvme,
		.dst_id = run->s->id,
		.throttle = e->throttle,
		.crcs = crcs,
		.buffers = buffers,
	};
	int r = FAULT("stream.write", -EIO);

	if (r == 0)
		r = src->ops->open(src, run->s->backing->id, O_RDONLY, &fd);
	if (r < 0)
		return r;
	job.src_fd = fd;
	return flush_run(&job);
}

static void run_done(struct engine *e, const struct run *run, int r,
		     const uint32_t *crcs)
{
	struct streams *ss = &e->streams;
	struct stream *s = run->s;
	bool dropped;

	mutex_lock(&ss->lock);
	for (uint32_t i = run->from; i < run->to; i++) {
		/* What failed is left to the flush, which tells. */
		s->state[i] = r < 0 ? CHUNK_EMPTY : CHUNK_WRITTEN;
		s->crcs[i] = crcs[i - run->from];
	}
	s->running = false;
	dropped = s->dropped;
	if (dropped)
		remove_locked(ss, s);
	pthread_cond_broadcast(&ss->rested);
	mutex_unlock(&ss->lock);
	if (!dropped)
		return;
	(void)!e->nvme->ops->remove(e->nvme, s->id);
	stream_free(e, s);
}

void *streamer_main(void *arg)
{
	CLEANUP(flush_buffers_fini) struct flush_buffers buffers = { 0 };
	struct engine *e = arg;
	struct run run;

	thread_lower_priority();
	while (take_run(&e->streams, &buffers, &run)) {
		uint32_t crcs[RUN_MOST] = { 0 };

		run_done(e, &run, write_run(e, &run, &buffers, crcs), crcs);
	}
	return NULL;
}
