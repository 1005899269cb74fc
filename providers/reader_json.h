/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON (RFC 8259) as it streams by: no tree is built, so a hostile header of
 * 100 MB costs time and no memory. The caller says what it expects next. (The
 * names json_* are jansson's, which is linked into the same programs.)
 *
 * All return 0, -ENOMSG (not JSON, or not what was expected, or nested deeper
 * than JSON_DEPTH_MAX), or what the source's read returned.
 */
#ifndef CKPT_PROVIDERS_READER_JSON_H
#define CKPT_PROVIDERS_READER_JSON_H

#include "providers/reader_cursor.h"

#define JSON_DEPTH_MAX 64

struct jscan {
	struct reader_cursor *c;
	unsigned depth;
};

/*
 * Called for each member of an object, or element of an array (key NULL), and
 * takes its value with one of the functions below. Not 0 stops all.
 */
typedef int jscan_each(struct jscan *j, const char *key, void *arg);

/*
 * Keys are put in key, room bytes with the NUL; without key they are not told.
 * -ENOMSG also for a key that is too long or has a NUL in it.
 */
MUST_CHECK int jscan_object(struct jscan *j, char *key, size_t room,
			    jscan_each *each, void *arg);
MUST_CHECK int jscan_array(struct jscan *j, jscan_each *each, void *arg);

/* buf NULL: any string, not told. Else as the key above. */
MUST_CHECK int jscan_string(struct jscan *j, char *buf, size_t room);

/* An integer without sign, fraction and exponent that fits. */
MUST_CHECK int jscan_u64(struct jscan *j, uint64_t *out);

/* Any value. */
MUST_CHECK int jscan_skip(struct jscan *j);

/* Nothing but white space up to the cursor's end. */
MUST_CHECK int jscan_end(struct jscan *j);

#endif
