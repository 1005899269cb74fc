/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of the remote kind `dir:` (remote_dir*.c): a directory of any
 * POSIX filesystem. What lies where, byte by byte: REMOTE-FORMAT.md. Only
 * remote_dir_open() is for others (the registry), and for tests
 * remote_dir_without_xattrs().
 *
 *   remote_dir.c          the operations on names, and the vtable
 *   remote_dir_path.c     the way to a name, also where it is closed
 *   remote_dir_root.c     the connection: root, marker, what needs fsync
 *   remote_dir_stage.c    bytes: stage, restage, unstage
 *   remote_dir_dress.c    what a staged file wears
 *   remote_dir_place.c    names for staged objects: place, link
 *   remote_dir_node.c     what is at a name, and its label
 *   remote_dir_attr.c     attributes: as the real thing, and what is left
 *   remote_dir_sidecar.c  records under .ckptfs/
 *
 * Nothing here follows a symlink: a parent is opened beneath the root without
 * them, and an object is handled by an O_PATH descriptor, because whoever can
 * write to the store must not be able to lead a daemon out of it.
 *
 * Locks: remote_dir.lock is a leaf, never held over I/O.
 */
#ifndef CKPT_ENGINE_REMOTE_DIR_H
#define CKPT_ENGINE_REMOTE_DIR_H

#include <sys/queue.h>
#include <sys/stat.h>

#include "engine/remote.h"

#define TAG_LEN 96 /* with the NUL: identity.instance */
#define TAG_XATTR "user.ckptfs.version"
#define OWN_XATTRS "user.ckptfs." /* ours: never a user's */

/* rest: an absolute path. -EINVAL: it is not. Touches nothing. */
MUST_CHECK int remote_dir_open(const char *rest, struct remote **out);
/* From now on as if the filesystem had no xattrs. For tests. */
void remote_dir_without_xattrs(struct remote *r);

/* ---- the connection --------------------------------------------------- */

/* One attachment. Kept by whoever works in it while another replaces it. */
struct dir_root {
	struct remote_dir *d; /* outlives it, for who has a root holds d */
	_Atomic unsigned refs;
	int fd, own, staged, versions; /* immutable */
	_Atomic int names;             /* -1 while there is no such folder */
	struct stat st, marker;        /* immutable */
};

#define N_DIRTY 64u

struct dirty { /* what must be fsynced till the next sync() */
	dev_t dev;
	ino_t ino;
	int fd;
};

struct staged { /* with which attributes a version was staged */
	LIST_ENTRY(staged) next;
	uint64_t attr_hash;
	char identity[64];
};

struct remote_dir {
	struct remote remote;
	char *path;              /* immutable */
	_Atomic bool no_xattrs;  /* forced by a test */
	_Atomic uint64_t n_temp; /* makes temporary names unique */
	struct mutex lock;
	bool in_bounded;             /* guarded by lock */
	pthread_cond_t bounded_over; /* the same, and bounded.done */
	struct dir_root *root;       /* guarded by lock; NULL: detached */
	struct dirty dirty[N_DIRTY]; /* guarded by lock */
	unsigned n_dirty;            /* guarded by lock */
	LIST_HEAD(, staged) staged;  /* guarded by lock */
};

static inline struct remote_dir *remote_dir(struct remote *r)
{
	return CONTAINER_OF(r, struct remote_dir, remote);
}

/* Operations of the vtable that live in remote_dir_root.c. */
MUST_CHECK int dir_attach(struct remote *r, char id[REMOTE_ID_ROOM], char *why,
			  size_t why_len);
MUST_CHECK int dir_probe(struct remote *r, char *why, size_t why_len);
MUST_CHECK int dir_sync(struct remote *r, bool all);
void dir_close(struct remote *r);

/*
 * The root, if it still is the one that was attached: put it back.
 *   -ENOTCONN  it is not
 */
MUST_CHECK int root_get(struct remote_dir *d, struct dir_root **out);
void root_put(struct dir_root *root); /* NULL allowed */
void root_putp(struct dir_root **root);
/* Folder of path-keyed records, which is added to what needs fsync if it is
 * made here. -ENOENT: there is none, and !make. */
MUST_CHECK int root_names(struct dir_root *root, bool make, int *fd);
/* fd (which is duplicated) needs fsync. */
MUST_CHECK int dirty_add(struct remote_dir *d, int fd);
/* A name for a temporary file in staged/, unique in this process. */
void temp_name(struct remote_dir *d, char out[64]);

/* ---- paths ------------------------------------------------------------ */

/* Mode bits that something of ours lacked and has for the moment. */
struct lent {
	int fd;         /* borrowed */
	mode_t was, is; /* is 0: nothing is lent */
};
/* Gives what fd shows the bits need (S_I?USR), if it is ours and we are held
 * up without; lent_back() takes them away. Nothing to do is success. */
MUST_CHECK int lend(int fd, mode_t need, struct lent *out);
void lent_back(struct lent *l);

/* A checked path, its parent open. */
struct place {
	int parent;
	const char *name; /* in the caller's path; "." for the root */
	struct lent lent; /* of the parent */
};
/*
 * To look at what is there; to change which name leads where. The parent has
 * the rights that needs until place_close().
 *
 * -EINVAL  a path that cannot be (or lies under .ckptfs)
 * -ENOENT, -ENOTDIR  the parent is not there
 */
MUST_CHECK int place_open(struct dir_root *root, const char *path,
			  struct place *out);
MUST_CHECK int place_change(struct dir_root *root, const char *path,
			    struct place *out);
void place_close(struct place *p);
/* openat(), to read, or to fsync: also if we closed it to ourselves. A
 * descriptor, or -errno. */
MUST_CHECK int open_anyway(int at, const char *name, int flags);

/* What is at a name: an O_PATH descriptor, never that of a link's target. */
struct node {
	int fd;
	struct stat st;
	char proc[32]; /* its name under /proc, for calls that take paths */
	bool by_name;  /* its label is in names/ (set by node_label) */
};
MUST_CHECK int node_open(int parent, const char *name, struct node *out);
void node_close(struct node *n);
/* As open_anyway(), of what the node is. */
MUST_CHECK int node_reopen(const struct node *n, int flags);
/* getxattr(), likewise: it wants the right to read. -1, errno. */
ssize_t node_xattr(const struct node *n, const char *name, void *value,
		   size_t len);
MUST_CHECK int node_stat(struct node *n);
/* The filesystem or our rights do not allow it; the sidecar will tell. */
bool is_refusal(int err);
bool is_xattr_refusal(int err);

/* ---- sidecars --------------------------------------------------------- */

#define SIDE_MODE 1u  /* mode could not be set on the object */
#define SIDE_OWNER 2u /* uid, gid */
#define SIDE_MTIME 4u

struct sidecar {
	uint32_t flags; /* SIDE_*: which of attr's values win */
	char tag[TAG_LEN];
	char *path;              /* names/ only; owned */
	int64_t real_mtime[2];   /* what stat says, or will say; either fits */
	struct remote_attr attr; /* size, crcs, and what is left to say */
};
void sidecar_fini(struct sidecar *s);
/* -EBADMSG: not a whole record; -EOPNOTSUPP: a newer one */
MUST_CHECK int sidecar_decode(const void *rec, size_t len, struct sidecar *out);

/*
 * versions/<tag>. Written synced, atomically; the name needs fsync, as all
 * that is made and removed by path does: the next sync() sees to it.
 */
MUST_CHECK int sidecar_write(struct dir_root *root, const struct sidecar *s);
MUST_CHECK int sidecar_read(struct dir_root *root, const char *tag,
			    struct sidecar *out);
void sidecar_remove(struct dir_root *root, const char *tag);
/* names/<hash of s->path>, the same way. */
MUST_CHECK int name_write(struct dir_root *root, const struct sidecar *s);
MUST_CHECK int name_read(struct dir_root *root, const char *path,
			 struct sidecar *out);
/* None there is success. */
MUST_CHECK int name_remove(struct dir_root *root, const char *path);
/* The record speaks of what st shows. */
bool sidecar_fits(const struct sidecar *s, const struct stat *st);

/* All path-keyed records at and below a path, for renames. */
struct names {
	struct sidecar *all;
	size_t n, cap;
};
MUST_CHECK int names_collect(struct remote_dir *d, struct dir_root *root,
			     const char *path, struct names *out);
/* Writes them again for the path that `from` has become or will become. */
MUST_CHECK int names_write(struct dir_root *root, const struct names *ns,
			   const char *from, const char *to);
MUST_CHECK int names_remove(struct dir_root *root, const struct names *ns);
void names_fini(struct names *ns);

/* ---- attributes ------------------------------------------------------- */

/* The version an object carries ("" if it is not one of ours, or was changed
 * by others); side (may be NULL) gets its record if it does. */
MUST_CHECK int node_tag(struct remote_dir *d, struct dir_root *root,
			struct node *n, const char *path, char tag[TAG_LEN],
			struct sidecar *side);
/* Just the words on the label, believed without looking further. */
MUST_CHECK int node_label(struct remote_dir *d, struct dir_root *root,
			  struct node *n, const char *path, char tag[TAG_LEN]);
/* -EOPNOTSUPP: names/ must carry it */
MUST_CHECK int node_set_label(struct remote_dir *d, struct node *n,
			      const char *tag);
/*
 * Sets what can be set; what cannot is told in left (flags, values, xattrs,
 * real_mtime), which is initialised here: sidecar_fini() it. n->st is fresh
 * afterwards.
 */
MUST_CHECK int node_set_attr(struct remote_dir *d, struct node *n,
			     const struct remote_attr *a, struct sidecar *left);
/* All of n's, and what its sidecar knows better; n->st is fresh. *out is zero
 * before, and in need of remote_attr_fini() afterwards, whatever came of it. */
MUST_CHECK int node_get_attr(struct remote_dir *d, struct dir_root *root,
			     struct node *n, const char *path,
			     struct remote_attr *out);
uint64_t attr_hash(const struct remote_attr *a);
/* "identity.instance" → "identity" */
void tag_identity(const char *tag, char identity[64]);

MUST_CHECK int dir_set_attr(struct remote *r, const char *path,
			    const struct remote_attr *attr);
MUST_CHECK int dir_get_attr(struct remote *r, const char *path,
			    struct remote_attr *out);
/* A directory, symlink or foreign file: set, and keep what is left. */
MUST_CHECK int plain_set_attr(struct remote_dir *d, struct dir_root *root,
			      struct node *n, const char *path,
			      const struct remote_attr *attr);

/* ---- bytes ------------------------------------------------------------ */

/* A file in staged/: its path as records have it; its node and label. */
void staged_path(const char *name, char out[META_NAME_MAX + 1]);
MUST_CHECK int staged_label(struct remote_dir *d, struct dir_root *root,
			    const char *name, struct node *n,
			    char tag[TAG_LEN]);
/* A label for names/: what st shows at path is the object with this tag. */
MUST_CHECK int staged_write_name(struct dir_root *root, const char *path,
				 const char *tag, const struct stat *st);
/*
 * Every object has a tag, and so a sidecar, of its own, although several may
 * hold the same version: each can be changed and removed by itself.
 */
MUST_CHECK int staged_new_tag(const char *identity, char tag[TAG_LEN]);
/*
 * Before the mtime of a file with the label tag, which st shows, is set: its
 * sidecar takes either, so that whoever dies in between leaves an object that
 * still is of its version.
 *   -ENOENT  it has no sidecar that fits: it is, or counts as, one of others
 */
MUST_CHECK int staged_expect(struct dir_root *root, const char *tag,
			     const struct stat *st, int64_t mtime_ns);
/* Attributes, label and sidecar of the file `name` in staged/ (open as fd),
 * which is to be called `later` there; synced. tag "": of no version. */
MUST_CHECK int staged_dress(struct remote_dir *d, struct dir_root *root, int fd,
			    const char *name, const char *later,
			    const char *tag, const struct remote_attr *attr);
/* The object at `from` once more, as temp in staged/, dressed. */
MUST_CHECK int staged_copy(struct remote_dir *d, struct dir_root *root,
			   const struct place *from,
			   const struct remote_attr *attr, const char *temp,
			   const char *later);
/* With its sidecar, which no other object has. */
void staged_remove(struct remote_dir *d, struct dir_root *root,
		   const char *name);
bool staged_is_there(struct dir_root *root, const struct remote_attr *attr);
/* With which attributes it was staged. Only a note: without memory for it,
 * place() dresses once more. */
void staged_note(struct remote_dir *d, const struct remote_attr *attr);
bool staged_is_dressed(struct remote_dir *d, const struct remote_attr *attr);
void staged_forget(struct remote_dir *d, const char *identity);

MUST_CHECK int dir_stage(struct remote *r, const struct remote_attr *attr,
			 int fd, _Atomic uint64_t *progress);
MUST_CHECK int dir_place(struct remote *r, const char *path,
			 const struct remote_attr *attr);
MUST_CHECK int dir_unstage(struct remote *r, const char *identity);
MUST_CHECK int dir_unstage_all(struct remote *r, const char *uuid);
MUST_CHECK int dir_restage(struct remote *r, const struct remote_attr *attr,
			   const char *from);
MUST_CHECK int dir_link(struct remote *r, const char *from, const char *to);
/* What was at a name before something else took it: its sidecar goes, if no
 * other name shares it. Before (look) and after (forget) the change. */
struct before {
	char tag[TAG_LEN];
	bool by_name; /* the tag is in names/ */
	bool shared;
	struct stat st; /* st_nlink 0: nothing was there */
};
MUST_CHECK int before_look(struct remote_dir *d, struct dir_root *root,
			   const struct place *p, const char *path,
			   struct before *out);
void before_forget(struct dir_root *root, const struct before *b,
		   const char *new_tag);

#endif
