/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moves one version from DRAM to NVMe. The calling thread walks the chunks:
 * it looks whether there is data, takes the checksum, and hands the chunk to
 * the tier, which writes while the next one is summed.
 *
 * Where the bytes of a chunk are read from:
 *   data, final      the mapping of the source: no copy
 *   data, not final  a bounce buffer by pread: the file may be cut (SIGBUS
 *                    through a mapping) or stored to between the sum and the
 *                    DMA (the sum would then prove nothing)
 *   some holes       a bounce buffer: a read of a hole through a mapping of a
 *                    tmpfs file allocates it
 *   all hole         nowhere; the destination is made a hole too
 *
 * The destination may be preallocated, and may hold what an earlier attempt
 * or an older version left: each chunk is written in full or punched, and the
 * size, set to whole blocks first (ext4 and XFS write in parallel only inside
 * the size), is cut to the byte at the end, which gives back the room behind.
 */
#include "engine/flush.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "engine/checksum.h"
#include "engine/extent.h"
#include "engine/fd_io.h"
#include "engine/thread.h"
#include "metadata/fault.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#define BLOCK_LEN 4096u
#define N_FINAL 8 /* chunks in flight of a flush from the mapping */
#define N_BOUNCE FLUSH_BUFFERS /* of one that copies */

struct slot {
	struct tier_io io;
	struct flush *flush;
	struct slot *next;
	void *bounce; /* CHUNK_LEN bytes; allocated when first needed */
	uint64_t len; /* of the version, without padding */
};

struct flush {
	const struct flush_job *job;
	int fd;               /* destination */
	const char *map;      /* source, or NULL */
	bool stale;           /* destination holds or has set aside something */
	struct extent extent; /* of the source */
	uint32_t hole_crc;    /* of a whole chunk */
	bool hole_known;

	struct mutex lock;
	pthread_cond_t freed;
	struct slot *free;  /* guarded by lock */
	unsigned in_flight; /* guarded by lock */
	int error;          /* first one; guarded by lock */
	uint64_t done;      /* told to progress; guarded by lock */
	struct slot slots[N_FINAL];
};

static uint64_t round_up(uint64_t len)
{
	return (len + BLOCK_LEN - 1) / BLOCK_LEN * BLOCK_LEN;
}

static uint64_t chunk_len(const struct flush_job *job, uint64_t off)
{
	uint64_t left = job->size - off;

	return left < CHUNK_LEN ? left : CHUNK_LEN;
}

static void advance_locked(struct flush *f, uint64_t len) MUST_HOLD(f->lock);
static void advance_locked(struct flush *f, uint64_t len)
{
	f->done += len;
	if (f->job->progress)
		atomic_fetch_add(f->job->progress, len);
}

static void advance(struct flush *f, uint64_t len)
{
	mutex_lock(&f->lock);
	advance_locked(f, len);
	mutex_unlock(&f->lock);
}

/* What was told of a failed flush is taken back: it will be told again. */
static void withdraw(struct flush *f)
{
	if (f->job->progress)
		atomic_fetch_sub(f->job->progress, f->done);
}

/* ---- slots ---- */

/* NULL: a write failed; no use going on. */
static struct slot *slot_take(struct flush *f)
{
	struct slot *s = NULL;

	mutex_lock(&f->lock);
	while (!f->free && !f->error)
		pthread_cond_wait(&f->freed, &f->lock.m);
	if (!f->error) {
		s = f->free;
		f->free = s->next;
		f->in_flight++;
	}
	mutex_unlock(&f->lock);
	return s;
}

static void slot_put(struct flush *f, struct slot *s, int res)
{
	mutex_lock(&f->lock);
	s->next = f->free;
	f->free = s;
	f->in_flight--;
	if (res && !f->error)
		f->error = res;
	if (!res)
		advance_locked(f, s->len);
	pthread_cond_broadcast(&f->freed);
	mutex_unlock(&f->lock);
}

static void written(struct tier_io *io)
{
	struct slot *s = CONTAINER_OF(io, struct slot, io);

	slot_put(s->flush, s, io->res);
}

static int wait_all(struct flush *f)
{
	int error;

	mutex_lock(&f->lock);
	while (f->in_flight)
		pthread_cond_wait(&f->freed, &f->lock.m);
	error = f->error;
	mutex_unlock(&f->lock);
	return error;
}

/* ---- one chunk ---- */

static int bounce_alloc(struct slot *s)
{
	if (!s->bounce && posix_memalign(&s->bounce, BLOCK_LEN, CHUNK_LEN))
		s->bounce = NULL;
	return s->bounce ? 0 : -ENOMEM;
}

/* What is behind the end of the source, or of the version, reads as zeros. */
static int bounce_fill(struct slot *s, int fd, uint64_t off)
{
	size_t len = (size_t)s->len;
	int rc = bounce_alloc(s);
	ssize_t got;

	if (rc)
		return rc;
	got = pread_most(fd, s->bounce, len, off);
	if (got < 0)
		return (int)got;
	memset((char *)s->bounce + got, 0, round_up(len) - (size_t)got);
	return 0;
}

static int chunk_source(struct flush *f, struct slot *s, uint64_t off,
			enum extent_kind kind)
{
	int rc;

	if (f->map && kind == EXTENT_DATA) {
		s->io.buf = f->map + off;
		/* One fault for all of it; where it fails, faults do. */
		(void)madvise((void *)s->io.buf, round_up(s->len),
			      MADV_POPULATE_READ);
		return 0;
	}
	rc = bounce_fill(s, f->job->src_fd, off);
	s->io.buf = s->bounce;
	return rc;
}

static uint32_t *crc_of(const struct flush *f, uint64_t off)
{
	return &f->job->crcs[(off - f->job->from) / CHUNK_LEN];
}

/* Written while the file was being filled, and not changed since? If not, it
 * will be another one, also for who asks again. */
static bool is_there(struct flush_have *have, uint64_t off, uint32_t crc)
{
	uint64_t i = off / CHUNK_LEN;

	if (!have || i >= have->n || !have->on[i])
		return false;
	have->on[i] = have->crcs[i] == crc;
	return have->on[i];
}

static int chunk_write(struct flush *f, struct slot *s, uint64_t off,
		       enum extent_kind kind)
{
	struct tier *dst = f->job->dst;
	uint32_t crc;
	int rc;

	s->flush = f;
	s->len = chunk_len(f->job, off);
	s->io = (struct tier_io){
		.fd = f->fd,
		.len = round_up(s->len),
		.off = off,
		.done = written,
	};
	rc = chunk_source(f, s, off, kind);
	if (rc)
		return rc;
	crc = crc32c(0, s->io.buf, s->len);
	*crc_of(f, off) = crc;
	if (is_there(f->job->have, off, crc)) {
		slot_put(f, s, 0);
		return 0;
	}
	throttle_wait(f->job->throttle, s->io.len);
	rc = FAULT("flush.write", -EIO);
	if (rc)
		return rc;
	return dst->ops->write(dst, &s->io);
}

/* *kind becomes MIXED where the destination cannot have holes. */
static int chunk_skip(struct flush *f, uint64_t off, enum extent_kind *kind)
{
	uint64_t len = chunk_len(f->job, off);
	int rc = 0;

	if (f->job->have && off / CHUNK_LEN < f->job->have->n)
		f->job->have->on[off / CHUNK_LEN] = 0;
	if (f->stale)
		rc = extent_punch(f->fd, off, round_up(len));
	if (rc == -EOPNOTSUPP) {
		*kind = EXTENT_MIXED;
		return 0;
	}
	if (rc)
		return rc;
	if (!f->hole_known) {
		f->hole_crc = crc32c_zeros(CHUNK_LEN);
		f->hole_known = true;
	}
	*crc_of(f, off) = len == CHUNK_LEN ? f->hole_crc : crc32c_zeros(len);
	advance(f, len);
	return 0;
}

static int chunk_flush(struct flush *f, uint64_t off)
{
	enum extent_kind kind;
	struct slot *s;
	int rc;

	kind = extent_look(&f->extent, f->job->src_fd, off,
			   chunk_len(f->job, off));
	/* Of a part nothing is punched: the room is for what will be there. */
	if (kind == EXTENT_HOLE && f->job->part)
		kind = EXTENT_MIXED;
	if (kind == EXTENT_HOLE) {
		rc = chunk_skip(f, off, &kind);
		if (rc || kind == EXTENT_HOLE)
			return rc;
	}
	s = slot_take(f);
	if (!s)
		return -EIO; /* wait_all() knows the real one */
	rc = chunk_write(f, s, off, kind);
	if (rc)
		slot_put(f, s, rc);
	return rc;
}

/* ---- the whole ---- */

static int dst_open(struct flush *f)
{
	const struct flush_job *job = f->job;
	const struct tier_ops *ops = job->dst->ops;
	struct stat st;
	int rc;

	rc = ops->open(job->dst, job->dst_id, O_RDWR | O_DIRECT, &f->fd);
	if (rc == -ENOENT) {
		CLEANUP(close_p) int fresh = -1;

		rc = ops->create(job->dst, job->dst_id, O_RDONLY, &fresh);
		if (!rc || rc == -EEXIST) /* the lease was faster */
			rc = ops->open(job->dst, job->dst_id, O_RDWR | O_DIRECT,
				       &f->fd);
	}
	if (rc)
		return rc;
	if (fstat(f->fd, &st))
		return -errno;
	f->stale = st.st_size || st.st_blocks;
	if (job->part && (uint64_t)st.st_size >= job->size)
		return 0;
	return ftruncate(f->fd, (off_t)round_up(job->size)) ? -errno : 0;
}

/* Without a mapping all goes through the bounce buffers: slower, not wrong. */
static void src_map(struct flush *f)
{
	const struct flush_job *job = f->job;
	struct stat st;
	void *map;

	if (!job->final || !job->size || fstat(job->src_fd, &st) ||
	    (uint64_t)st.st_size < job->size)
		return;
	map = mmap(NULL, job->size, PROT_READ, MAP_SHARED, job->src_fd, 0);
	if (map != MAP_FAILED)
		f->map = map;
}

void flush_buffers_fini(struct flush_buffers *b)
{
	for (unsigned i = 0; i < FLUSH_BUFFERS; i++)
		free(b->p[i]);
	*b = (struct flush_buffers){ 0 };
}

static void flush_init(struct flush *f, const struct flush_job *job)
{
	unsigned n;

	*f = (struct flush){ .job = job, .fd = -1 };
	mutex_init(&f->lock);
	condition_init(&f->freed);
	src_map(f);
	n = f->map ? N_FINAL : N_BOUNCE;
	for (unsigned i = 0; i < n; i++) {
		f->slots[i].next = f->free;
		f->free = &f->slots[i];
	}
	for (unsigned i = 0; job->buffers && i < N_BOUNCE; i++)
		f->slots[i].bounce = job->buffers->p[i];
}

static void flush_fini(struct flush *f)
{
	for (unsigned i = 0; f->job->buffers && i < N_BOUNCE; i++)
		f->job->buffers->p[i] = MOVE(f->slots[i].bounce);
	for (unsigned i = 0; i < N_FINAL; i++)
		free(f->slots[i].bounce);
	if (f->map)
		munmap((void *)f->map, f->job->size);
	close_p(&f->fd);
	pthread_cond_destroy(&f->freed);
	mutex_fini(&f->lock);
}

static int move_all(struct flush *f)
{
	const struct flush_job *job = f->job;
	int rc, error;

	rc = dst_open(f);
	for (uint64_t off = job->from; !rc && off < job->size; off += CHUNK_LEN)
		rc = chunk_flush(f, off);
	error = wait_all(f);
	if (error)
		return error;
	if (rc || job->part)
		return rc;
	if (ftruncate(f->fd, (off_t)job->size))
		return -errno;
	return job->dst->ops->sync(job->dst, f->fd);
}

static int flush_move(const struct flush_job *job)
{
	struct flush f;
	int rc;

	flush_init(&f, job);
	rc = move_all(&f);
	if (rc)
		withdraw(&f);
	flush_fini(&f);
	return rc;
}

/* Does all of it come from the page cache? Then it has never left it. */
static bool fill_from_cache(struct slot *s, int fd, uint64_t off)
{
	struct iovec v = { .iov_base = s->bounce, .iov_len = (size_t)s->len };

	return preadv2(fd, &v, 1, (off_t)off, RWF_NOWAIT) == (ssize_t)s->len;
}

/*
 * A spilled file is where it belongs. Its dirty pages start on their way
 * while their checksums are taken.
 */
static int sum_in_place(struct flush *f, struct slot *s)
{
	const struct flush_job *job = f->job;
	bool known = true;
	int rc;

	for (uint64_t off = 0; off < job->size; off += CHUNK_LEN) {
		s->len = chunk_len(job, off);
		rc = bounce_alloc(s);
		if (!rc && !fill_from_cache(s, job->src_fd, off)) {
			known = false;
			rc = bounce_fill(s, job->src_fd, off);
		}
		if (rc)
			return rc;
		job->crcs[off / CHUNK_LEN] = crc32c(0, s->bounce, s->len);
		advance(f, s->len);
	}
	rc = job->dst->ops->sync(job->dst, job->src_fd);
	if (rc && job->doubt)
		*job->doubt =
			(struct flush_doubt){ .failed = true, .known = known };
	return rc;
}

static int flush_in_place(const struct flush_job *job)
{
	struct flush_job by_reading = *job;
	struct flush f;
	int rc;

	by_reading.final = false; /* no mapping: a bad disk would be SIGBUS */
	(void)sync_file_range(job->src_fd, 0, 0, SYNC_FILE_RANGE_WRITE);
	flush_init(&f, &by_reading);
	rc = sum_in_place(&f, &f.slots[0]);
	if (rc)
		withdraw(&f);
	flush_fini(&f);
	return rc;
}

int flush_run(const struct flush_job *job)
{
	return job->in_place ? flush_in_place(job) : flush_move(job);
}
