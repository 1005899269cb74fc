/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libckpt: capture of training state while training computes.
 *
 * Parameters and optimizer state do not change during forward and backward. So
 * a checkpoint is *submitted* right after an update and *captured* under the
 * next step's compute; only the next update waits, in ckpt_fence(), for what is
 * not captured yet (lazy capture, after the paper DataStates-LLM). What is
 * captured streams on: into DRAM, to NVMe, to the remote, as ckptfs does it; on
 * any other filesystem through a bounded staging pool into the file, whole pages
 * of it past the page cache (O_DIRECT) where there is one.
 *
 *	struct ckpt *ck;
 *	struct ckpt_capture *cap;
 *
 *	r = ckpt_open(NULL, &ck);                       once a process
 *	...
 *	r = ckpt_begin(ck, "/ckpt/step-100/rank0.bin", &cap);
 *	r = ckpt_add(cap, ckpt_memory(weights, len));   any number
 *	r = ckpt_submit(cap);                           returns at once
 *	forward(); backward();
 *	r = ckpt_fence(ck);                             before the update
 *	optimizer_step();
 *	...
 *	r = ckpt_wait(cap, CKPT_NVME, -1);
 *	ckpt_capture_free(cap);
 *
 * The file appears under its name when its capture is complete, never before:
 * it is written as ".NAME.ckpt-PID-N" in the same directory and renamed. One
 * that fails, is cancelled, or whose process dies is never seen under its name,
 * and what it left is removed by a capture into that directory a minute later
 * or more. To replace an existing file is all right.
 *
 * Places: every provider yields bytes for one range of the file. Those whose
 * size is known lie in the order in which they were added; those whose size is
 * not (objects that are yet to be serialised) follow behind them, in order, as
 * they become known. The order of *capture* is free: what lies on a device
 * first, because it holds up the fence, then host memory, then objects, which
 * are serialised while the others stream.
 *
 * Errors are 0 or -errno, as they came from the system or a provider.
 * ckpt_error() has them in words that name the file and the remedy.
 *
 *   -ECHILD    the process was forked since ckpt_open(): the child has no part
 *              in the parent's captures, and may open its own
 *   -ECANCELED the capture was cancelled
 *   -ESTALE    the state was changed before it was captured
 *   -EFAULT    a provider broke its contract
 *
 * Threads: everything may be called from any thread at any time, unless it says
 * otherwise. Sizes are bytes.
 *
 * Signals: none are used. A mapping is only written where its room has been
 * allocated before, so that a full disk is -ENOSPC and not SIGBUS; a mount
 * that goes away under a mapping leaves its pages in place.
 */
#ifndef CKPT_H
#define CKPT_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKPT_VERSION_MAJOR 0
#define CKPT_VERSION_MINOR 1
#define CKPT_MUST_CHECK __attribute__((warn_unused_result))
#define CKPT_PUBLIC __attribute__((visibility("default")))

struct ckpt;
struct ckpt_capture;
struct ckpt_provider;

/* ---- providers --------------------------------------------------------- */

/* Where bytes live; also the order in which they are captured. */
enum ckpt_kind {
	CKPT_DEVICE = 0, /* ops->copy brings them to the host */
	CKPT_HOST = 1,   /* in host memory, borrowed until released */
	CKPT_OBJECT = 2, /* made (serialised) by next() itself, may take long */
	CKPT_TRAILER = 3, /* made from all the others (directories with
			     checksums): asked for when they are in */
	CKPT_KINDS,
};

#define CKPT_SIZE_UNKNOWN UINT64_MAX

/* A piece of a provider's range, of one kind, at most `max` bytes long. */
struct ckpt_chunk {
	uint64_t off;    /* in the provider's range */
	size_t len;      /* > 0 */
	const void *src; /* HOST and later: the bytes; they stay until the
			    provider is released. DEVICE: the provider's own
			    business, passed back to copy() */
	struct ckpt_provider *from; /* set by the engine: whose chunk it is */
};

/* A copy has ended: err is 0 or -errno. Any thread; returns quickly. */
typedef void ckpt_copied(void *arg, int err);

/*
 * A provider: a source of one piece of training state. A user's own is a struct
 * that begins with a struct ckpt_provider. One capture owns it from ckpt_add()
 * on and calls release() exactly once, also if it failed.
 *
 * The engine calls next() for one kind from one thread at a time, for
 * different kinds from different threads at the same time; filled() from any,
 * also at the same time for different chunks. next() for TRAILER, release(),
 * and filled() of DEVICE chunks (from the copy, not from the device) may come,
 * or still run, after ckpt_fence() has returned; all else comes before.
 */
struct ckpt_provider_ops {
	const char *name; /* for messages: "memory"; [a-z0-9-]+ */

	/*
	 * Bytes in its range; CKPT_SIZE_UNKNOWN while that is not known, which
	 * must have changed once next() has returned the first OBJECT or
	 * TRAILER chunk or the end.
	 */
	uint64_t (*size)(const struct ckpt_provider *p);

	/*
	 * The next chunk of this kind into *out (off, len, src). All chunks of
	 * all kinds together must cover the range, each byte once; what is
	 * left out is a hole (zeros).
	 *
	 *   1       there is one
	 *   0       none is left
	 *   -errno  the capture fails with it
	 */
	int (*next)(struct ckpt_provider *p, enum ckpt_kind kind, size_t max,
		    struct ckpt_chunk *out);

	/*
	 * DEVICE only, else NULL: start to copy chunk c to dst, which stays
	 * valid until done() has run; done() runs exactly once iff this
	 * returns 0. Copies may be queued until kick(), which comes before
	 * anybody waits for them.
	 *
	 * dst may be unmapped, or be another's, as soon as this returns an
	 * error, or done() has run: nothing is stored there any more then.
	 * Once a part of the copy is under way, its error is for done().
	 */
	int (*copy)(struct ckpt_provider *p, const struct ckpt_chunk *c,
		    void *dst, ckpt_copied *done, void *arg);

	/*
	 * DEVICE only, may be NULL: what copy() has queued must start now. 0
	 * or -errno: the capture fails with it. Whatever it returns, done() of
	 * every copy that was queued comes, without another kick: what cannot
	 * start ends with an error. So a kick should need nothing that it may
	 * fail to get (memory is copy()'s to find).
	 */
	int (*kick)(struct ckpt_provider *p);

	/*
	 * May be NULL. The bytes of chunk c are at `bytes`, in the host (sums,
	 * statistics); before any TRAILER chunk is asked for.
	 */
	void (*filled)(struct ckpt_provider *p, const struct ckpt_chunk *c,
		       const void *bytes);

	/*
	 * May be NULL. All bytes of all providers have been read: was the
	 * source left alone meanwhile? The capture counts as captured (and the
	 * fence returns) only after that.
	 *
	 *   0        yes
	 *   -ESTALE  it was changed: the file would be torn, and never appears
	 */
	int (*check)(struct ckpt_provider *p);

	/*
	 * Nothing of it is needed any more: it is complete, or failed. No call
	 * of it is in progress. Any thread.
	 */
	void (*release)(struct ckpt_provider *p);
};

struct ckpt_provider {
	const struct ckpt_provider_ops *ops;
};

/*
 * Host memory, borrowed: not to be changed or freed until ckpt_fence() has
 * returned (or the capture has ended). NULL: no memory.
 */
CKPT_PUBLIC struct ckpt_provider *ckpt_memory(const void *bytes, size_t len);

/* As before; free_fn(arg) runs at release, or before this returns NULL: arg is
 * the provider's in either case. free_fn may be NULL. */
CKPT_PUBLIC struct ckpt_provider *ckpt_memory_owned(const void *bytes,
						    size_t len,
						    void (*free_fn)(void *arg),
						    void *arg);

/* Host memory, copied before this returns: free to change at once. */
CKPT_PUBLIC struct ckpt_provider *ckpt_memory_copied(const void *bytes,
						     size_t len);

/*
 * An object: serialise(arg, &bytes, &len) is called once, on a thread of the
 * engine, and gives bytes that stay valid until free_fn(arg), which runs at
 * release (also if serialise never ran), or before this returns NULL. It
 * returns 0 or -errno. What it reads must not change until the capture is
 * captured; the fence covers it.
 */
typedef int ckpt_serialise(void *arg, const void **bytes, size_t *len);
CKPT_PUBLIC struct ckpt_provider *ckpt_object(ckpt_serialise *serialise,
					      void (*free_fn)(void *arg),
					      void *arg);

/*
 * Children of any kind as one, nested as one likes. Each child of known size
 * begins at the next multiple of `align` (a power of two; 1: no gaps) behind
 * the one before it. Children of a composite that is added to another join the
 * other's in order, so that all known sizes come before all unknown ones.
 */
CKPT_PUBLIC struct ckpt_provider *ckpt_composite(size_t align);

/*
 * Add a child, which the composite then owns (also if this fails: then it is
 * released). Not after the composite was added anywhere.
 *
 *   -EINVAL  it is no composite
 *   -ENOMEM
 */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_composite_add(
	struct ckpt_provider *composite, struct ckpt_provider *child);

/*
 * An imitated device, for tests and benchmarks without a GPU: `bytes` are
 * copied by a thread of its own at bytes_per_s, one device copying one chunk
 * at a time. Providers of one device share its speed. Borrowed as
 * ckpt_memory(). The device is freed after all its providers were released.
 */
struct ckpt_slow_device;
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_slow_device_new(
	uint64_t bytes_per_s, struct ckpt_slow_device **out);
CKPT_PUBLIC void ckpt_slow_device_free(struct ckpt_slow_device *device);
CKPT_PUBLIC struct ckpt_provider *ckpt_slow(struct ckpt_slow_device *device,
					    const void *bytes, size_t len);

/*
 * CUDA device memory, copied by DMA on a stream of its own, after all work
 * that is in `stream` (a cudaStream_t; NULL: the default stream) now. Borrowed
 * until ckpt_fence(). The CUDA driver library is loaded at run time.
 *
 *   -EOPNOTSUPP  this build has no CUDA
 *   -ENODEV      no driver, or no device of that number
 *   -EINVAL      not device memory
 *   -ENOMEM
 */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_cuda(const void *device_bytes, size_t len,
					  int device, void *stream,
					  struct ckpt_provider **out);

/* ---- captures ---------------------------------------------------------- */

enum ckpt_level {
	CKPT_CAPTURED = 0, /* the state may change again */
	CKPT_DRAM = 1,     /* the file is there under its name, accepted */
	CKPT_NVME = 2,     /* it survives power loss of this host */
	CKPT_REMOTE = 3,   /* it survives loss of this host */
};

enum ckpt_exit {
	CKPT_EXIT_DRAIN = 0, /* ckpt_close() ends what was submitted */
	CKPT_EXIT_ABORT = 1, /* ckpt_close() cancels what is not complete */
};

struct ckpt_options {
	size_t options_len;  /* sizeof(struct ckpt_options) */
	size_t chunk_len;    /* 0: 8 MiB; a multiple of 4 KiB, to 64 MiB */
	size_t staging_len;  /* pool of one process where a file cannot be
				 mapped (not on ckptfs in passthrough mode);
				 0: 256 MiB */
	uint64_t budget_len; /* staging of all processes of this user on this
				 node together; 0: an eighth of the RAM */
	enum ckpt_exit at_exit;
};

/*
 * Start the engine: a few threads, no memory to speak of until a capture needs
 * it. options NULL: the defaults.
 *
 *   -EINVAL  an option out of range
 *   -ENOMEM, -EAGAIN  no memory, no threads
 */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_open(const struct ckpt_options *options,
					  struct ckpt **out);

/*
 * End: drains or aborts, as the options say, joins the threads and frees. The
 * captures that were not freed are freed. Returns the first error of a capture
 * that nobody has been told (by fence or wait). In a forked child: forgets the
 * engine, 0. NULL: 0.
 */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_close(struct ckpt *ck);

/*
 * Begin a capture of the file at path (its directory must exist; mode 0666
 * less the umask). Touches no file yet. The caller owns it and frees it by
 * ckpt_capture_free().
 *
 *   -EINVAL, -ENAMETOOLONG  no path for a file
 *   -ENOMEM
 */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_begin(struct ckpt *ck, const char *path,
					   struct ckpt_capture **out);

/*
 * Add a provider, behind those before it; the capture owns it then, also if
 * this fails (then it is released). p may be NULL (what a constructor returned
 * without memory).
 *
 *   -ENOMEM  also for p NULL
 *   -EBUSY   it was submitted already
 */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_add(struct ckpt_capture *cap,
					 struct ckpt_provider *p);

/*
 * Start to capture; returns in well under a millisecond. Captures of an engine
 * are served, and their files get their names, in the order of their submission:
 * of two of the same name the one submitted last stays.
 *
 *   -EBUSY   twice
 *   -EINVAL  a composite's alignment, or sizes beyond 2^63
 */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_submit(struct ckpt_capture *cap);

/*
 * Before the update: waits until all captures submitted so far are captured, so
 * that the state may change. If one has failed since the last fence, its error:
 * that checkpoint will not appear. Each failure is told by one fence and then by
 * every ckpt_wait() on that capture.
 */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_fence(struct ckpt *ck);

/*
 * Wait until a capture has reached a level; timeout_ms < 0: as long as it takes.
 *
 *   -ETIMEDOUT
 *   -EOPNOTSUPP  CKPT_REMOTE where there is no ckptfs, or it has no remote
 *   -EIO, …      it failed, or what is behind it did
 *   -ESTALE      the mount has lost it since (its host lost power before the
 *                file was on NVMe), or another one stands there now
 * Without ckptfs, CKPT_NVME is an fsync of file and directory, which timeout_ms
 * does not bound.
 */
CKPT_PUBLIC CKPT_MUST_CHECK int ckpt_wait(struct ckpt_capture *cap,
					  enum ckpt_level level,
					  int timeout_ms);

/*
 * Give up a capture that is not complete; the fence no longer waits for it,
 * except for copies that are in flight (at most a few chunks). One that is
 * complete stays. Returns once its providers are released.
 */
CKPT_PUBLIC void ckpt_cancel(struct ckpt_capture *cap);

/*
 * What went wrong, in words: "cannot write '/ckpt/a/rank0.pt': No space left on
 * device: free some, or ...". "" if nothing did. Valid as long as the capture.
 */
CKPT_PUBLIC const char *ckpt_error(struct ckpt_capture *cap);

/* Times are ns of CLOCK_MONOTONIC, 0: has not happened. */
struct ckpt_stats {
	uint64_t bytes[CKPT_KINDS]; /* captured so far */
	uint64_t file_len;          /* 0 until it is known */
	int64_t submitted_ns;
	int64_t first_filled_ns; /* the first chunk was told to the mount, or
				    written */
	int64_t captured_ns;
	int64_t complete_ns; /* renamed */
	uint64_t staged_max; /* most bytes of the staging pool in use */
	int on_ckptfs;       /* 1: the file lies on a ckptfs mount */
	int mapped;          /* 1: devices copied straight into the file */
};

/* How far it is, as of now. */
CKPT_PUBLIC void ckpt_get_stats(struct ckpt_capture *cap,
				struct ckpt_stats *out);

/*
 * Free a capture. One that was submitted goes on to its end (or the abort of
 * ckpt_close()) on its own, and its error, if any, is told by the next fence or
 * by ckpt_close(). One that was not submitted releases its providers. NULL is
 * fine.
 */
CKPT_PUBLIC void ckpt_capture_free(struct ckpt_capture *cap);

#ifdef __cplusplus
}
#endif

#endif
