/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON as it streams by, strict: no comments, no trailing commas, no lone
 * surrogates, valid UTF-8 in what is told. The depth is bounded, for nested
 * values recurse.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_check.h"
#include "providers/reader_json.h"

/* The first byte that is not white space; not taken. */
static int peek(struct jscan *j, uint8_t *out)
{
	int rc;

	while (!(rc = cursor_peek(j->c, out))) {
		if (*out != ' ' && *out != '\t' && *out != '\n' && *out != '\r')
			return 0;
		j->c->pos++;
	}
	return rc;
}

static int expect(struct jscan *j, uint8_t want)
{
	uint8_t c;
	int rc = peek(j, &c);

	if (rc)
		return rc;
	if (c != want)
		return -ENOMSG;
	j->c->pos++;
	return 0;
}

/* A string that is told, or thrown away. */
struct text {
	char *buf;
	size_t room, len;
};

static int text_add(struct text *t, uint8_t c)
{
	if (!t->buf)
		return 0;
	if (!c || t->len + 1 >= t->room)
		return -ENOMSG;
	t->buf[t->len++] = (char)c;
	return 0;
}

static int text_add_char(struct text *t, uint32_t c)
{
	static const uint8_t lead[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
	unsigned n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	int rc;

	if (n == 1)
		return text_add(t, (uint8_t)c);
	rc = text_add(t, (uint8_t)(lead[n] | c >> 6 * (n - 1)));
	for (unsigned i = n - 1; !rc && i--;)
		rc = text_add(t, (uint8_t)(0x80 | (c >> 6 * i & 0x3f)));
	return rc;
}

static int hex4(struct jscan *j, uint32_t *out)
{
	uint32_t v = 0;
	uint8_t c;

	for (int i = 0; i < 4; i++) {
		int rc = cursor_byte(j->c, &c);

		if (rc)
			return rc;
		if (c >= '0' && c <= '9')
			v = v << 4 | (c - '0');
		else if ((c | 0x20) >= 'a' && (c | 0x20) <= 'f')
			v = v << 4 | ((c | 0x20) - 'a' + 10);
		else
			return -ENOMSG;
	}
	*out = v;
	return 0;
}

/* Behind \u: one unit, or a pair of surrogates. */
static int unicode(struct jscan *j, struct text *t)
{
	uint32_t high, low;
	uint8_t c;
	int rc = hex4(j, &high);

	if (rc)
		return rc;
	if (high < 0xd800 || high > 0xdfff)
		return text_add_char(t, high);
	if (high > 0xdbff)
		return -ENOMSG;
	if ((rc = cursor_byte(j->c, &c)))
		return rc;
	if (c != '\\')
		return -ENOMSG;
	if ((rc = cursor_byte(j->c, &c)))
		return rc;
	if (c != 'u')
		return -ENOMSG;
	if ((rc = hex4(j, &low)))
		return rc;
	if (low < 0xdc00 || low > 0xdfff)
		return -ENOMSG;
	return text_add_char(t, 0x10000 + ((high - 0xd800) << 10) +
					(low - 0xdc00));
}

static int escape(struct jscan *j, struct text *t)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const char *at;
	uint8_t c;
	int rc = cursor_byte(j->c, &c);

	if (rc)
		return rc;
	if (c == 'u')
		return unicode(j, t);
	at = c ? strchr(from, c) : NULL;
	return at ? text_add(t, (uint8_t)to[at - from]) : -ENOMSG;
}

int jscan_string(struct jscan *j, char *buf, size_t room)
{
	struct text t = { .buf = buf, .room = room };
	uint8_t c;
	int rc = expect(j, '"');

	while (!rc && !(rc = cursor_byte(j->c, &c))) {
		if (c == '"') {
			if (buf)
				buf[t.len] = '\0';
			return !buf || utf8_valid(buf, t.len) ? 0 : -ENOMSG;
		}
		if (c == '\\')
			rc = escape(j, &t);
		else
			rc = c < 0x20 ? -ENOMSG : text_add(&t, c);
	}
	return rc;
}

/*
 * What stands between open and close, commas between. *more: another one
 * follows, and its first byte is next.
 */
static int next(struct jscan *j, uint8_t close, bool first, bool *more)
{
	uint8_t c;
	int rc = peek(j, &c);

	if (rc)
		return rc;
	*more = c != close;
	if (!*more || !first)
		j->c->pos++;
	if (!*more || first)
		return 0;
	if (c != ',')
		return -ENOMSG;
	return 0;
}

static int open(struct jscan *j, uint8_t bracket)
{
	if (j->depth == JSON_DEPTH_MAX)
		return -ENOMSG;
	j->depth++;
	return expect(j, bracket);
}

int jscan_object(struct jscan *j, char *key, size_t room, jscan_each *each,
		 void *arg)
{
	bool more, first = true;
	int rc = open(j, '{');

	while (!rc && !(rc = next(j, '}', first, &more)) && more) {
		first = false;
		rc = jscan_string(j, key, room);
		if (!rc)
			rc = expect(j, ':');
		if (!rc)
			rc = each(j, key, arg);
	}
	j->depth--;
	return rc;
}

int jscan_array(struct jscan *j, jscan_each *each, void *arg)
{
	bool more, first = true;
	int rc = open(j, '[');

	while (!rc && !(rc = next(j, ']', first, &more)) && more) {
		first = false;
		rc = each(j, NULL, arg);
	}
	j->depth--;
	return rc;
}

/* Digits, at least one. *out: UINT64_MAX if they are too many. */
static int digits(struct jscan *j, uint64_t *out)
{
	uint64_t v = 0;
	bool any = false, over = false;
	uint8_t c;
	int rc;

	while (!(rc = cursor_peek(j->c, &c)) && c >= '0' && c <= '9') {
		if (any && !v && !over)
			return -ENOMSG; /* a zero in front */
		over |= __builtin_mul_overflow(v, 10, &v) ||
			__builtin_add_overflow(v, c - '0', &v);
		any = true;
		j->c->pos++;
	}
	if (rc && rc != -ENOMSG)
		return rc;
	*out = over ? UINT64_MAX : v;
	return any ? 0 : -ENOMSG;
}

int jscan_u64(struct jscan *j, uint64_t *out)
{
	uint64_t v;
	uint8_t c;
	int rc = peek(j, &c);

	if (!rc)
		rc = digits(j, &v);
	if (rc)
		return rc;
	if (v == UINT64_MAX)
		return -ENOMSG;
	*out = v;
	return 0;
}

/* Is the next byte one of those? Then it is taken. */
static int take(struct jscan *j, const char *any, bool *taken)
{
	uint8_t c;
	int rc = cursor_peek(j->c, &c);

	*taken = !rc && c && strchr(any, c);
	j->c->pos += *taken;
	return rc == -ENOMSG ? 0 : rc;
}

/* At least one, zeros in front or not. */
static int any_digits(struct jscan *j)
{
	bool any = false, yes;
	int rc;

	while (!(rc = take(j, "0123456789", &yes)) && yes)
		any = true;
	return rc ? rc : any ? 0 : -ENOMSG;
}

static int number(struct jscan *j)
{
	uint64_t v;
	bool yes;
	int rc;

	if ((rc = take(j, "-", &yes)) || (rc = digits(j, &v)) ||
	    (rc = take(j, ".", &yes)))
		return rc;
	if (yes && (rc = any_digits(j)))
		return rc;
	if ((rc = take(j, "eE", &yes)) || !yes)
		return rc;
	rc = take(j, "+-", &yes);
	return rc ? rc : any_digits(j);
}

static int word(struct jscan *j, const char *w)
{
	uint8_t c;
	int rc = 0;

	for (; !rc && *w; w++) {
		rc = cursor_byte(j->c, &c);
		if (!rc && c != (uint8_t)*w)
			rc = -ENOMSG;
	}
	return rc;
}

// NOLINTNEXTLINE(misc-no-recursion): bounded by JSON_DEPTH_MAX
static int skip_each(struct jscan *j, const char *key, void *arg)
{
	(void)key;
	(void)arg;
	return jscan_skip(j);
}

int jscan_skip(struct jscan *j)
{
	uint8_t c;
	int rc = peek(j, &c);

	if (rc)
		return rc;
	switch (c) {
	case '{':
		return jscan_object(j, NULL, 0, skip_each, NULL);
	case '[':
		return jscan_array(j, skip_each, NULL);
	case '"':
		return jscan_string(j, NULL, 0);
	case 't':
		return word(j, "true");
	case 'f':
		return word(j, "false");
	case 'n':
		return word(j, "null");
	default:
		return number(j);
	}
}

int jscan_end(struct jscan *j)
{
	uint8_t c;
	int rc = peek(j, &c);

	if (!rc)
		return -ENOMSG;
	return cursor_left(j->c) ? rc : 0;
}
