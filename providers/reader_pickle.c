/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine behind reader_pickle.h. Opcodes are rows of a table; each row's
 * function moves numbers of nodes between a stack, a memo and the nodes.
 *
 * Bounds. An opcode makes at most one node of constant size, and its operands
 * leave the stack, so time and memory are linear in the input. The memo is an
 * array, and so that one PUT with a large index cannot make it huge, an index
 * must be less than the input's length, as it is where indices are counted up.
 *
 * Nothing recurses: depth costs the parser nothing, only those who walk.
 */
#include <errno.h>
#include <string.h>

#include "providers/reader_pickle_graph.h"

struct machine {
	struct pickle *p;
	size_t at;
	struct array stack;
	struct array marks; /* heights of the stack */
	struct array memo;
	uint32_t small[256]; /* the nodes of small ints, made once */
	bool stopped;
};

/* ---- input and stack ---- */

static int take(struct machine *m, size_t n, const uint8_t **bytes)
{
	if (n > m->p->len - m->at)
		return -ENOMSG;
	*bytes = m->p->buf + m->at;
	m->at += n;
	return 0;
}

/* An unsigned number of n <= 8 bytes, little-endian. */
static int take_number(struct machine *m, size_t n, uint64_t *out)
{
	const uint8_t *bytes;
	uint64_t value = 0;
	int err = take(m, n, &bytes);

	if (err)
		return err;
	for (size_t i = n; i-- > 0;)
		value = value << 8 | bytes[i];
	*out = value;
	return 0;
}

static int push(struct machine *m, uint32_t ref)
{
	return pickle_push_number(m->p, &m->stack, ref);
}

static int push_node(struct machine *m, const struct node *node)
{
	uint32_t ref;
	int err = pickle_node_new(m->p, node, &ref);

	return err ? err : push(m, ref);
}

/* What lies below the last mark is out of reach. */
static uint32_t reachable(const struct machine *m)
{
	uint32_t floor = m->marks.n ? number_at(&m->marks, m->marks.n - 1) : 0;

	return m->stack.n - floor;
}

static int pop(struct machine *m, uint32_t *ref)
{
	if (!reachable(m))
		return -ENOMSG;
	*ref = ((const uint32_t *)m->stack.at)[--m->stack.n];
	return 0;
}

/* What lies above the last mark leaves the stack: n numbers at *from, valid
 * until the next push. */
static int pop_mark(struct machine *m, const uint32_t **from, uint32_t *n)
{
	uint32_t height;

	if (!m->marks.n)
		return -ENOMSG;
	height = ((const uint32_t *)m->marks.at)[--m->marks.n];
	*n = m->stack.n - height;
	*from = (const uint32_t *)m->stack.at + height;
	m->stack.n = height;
	return 0;
}

static int add_to(struct machine *m, enum pickle_kind kind,
		  const uint32_t *from, uint32_t n)
{
	uint32_t container;
	int err;

	if (!reachable(m) || (kind == PICKLE_DICT && n % 2))
		return -ENOMSG;
	err = pickle_container(m->p, number_at(&m->stack, m->stack.n - 1), kind,
			       &container);
	return err ? err : pickle_items_add(m->p, container, from, n);
}

static int tuple_new(struct machine *m, const uint32_t *from, uint32_t n)
{
	struct pickle *p = m->p;
	struct node node = { .kind = PICKLE_TUPLE,
			     .tuple = { .first = p->refs.n, .n = n } };
	int err;

	if (!n)
		return push(m, NODE_EMPTY);
	err = pickle_reserve(p, &p->refs, sizeof(*from), n);
	if (err)
		return err;
	memcpy((uint32_t *)p->refs.at + p->refs.n, from, n * sizeof(*from));
	p->refs.n += n;
	return push_node(m, &node);
}

/* ---- opcodes: each gets its row's arg ---- */

static int op_proto(struct machine *m, unsigned arg)
{
	uint64_t version;
	int err = take_number(m, 1, &version);

	(void)arg;
	if (err)
		return err;
	return version >= 2 && version <= 5 ? 0 : -ENOMSG;
}

/* A frame is a hint for reading ahead; only a lie about it matters. */
static int op_frame(struct machine *m, unsigned arg)
{
	uint64_t len;
	int err = take_number(m, 8, &len);

	(void)arg;
	if (err)
		return err;
	return len <= m->p->len - m->at ? 0 : -ENOMSG;
}

static int op_stop(struct machine *m, unsigned arg)
{
	(void)arg;
	if (m->marks.n || m->stack.n != 1)
		return -ENOMSG;
	m->stopped = true;
	return pop(m, &m->p->root);
}

static int op_fixed(struct machine *m, unsigned arg)
{
	return push(m, arg);
}

static int op_float(struct machine *m, unsigned arg)
{
	const uint8_t *bytes;
	int err = take(m, arg, &bytes);

	return err ? err : push(m, NODE_OTHER);
}

static int push_int(struct machine *m, uint64_t value)
{
	struct node node = { .kind = PICKLE_INT,
			     .number = { (uint32_t)value,
					 (uint32_t)(value >> 32) } };
	uint32_t ref;
	int err;

	if (value < 256 && m->small[value])
		return push(m, m->small[value]);
	err = pickle_node_new(m->p, &node, &ref);
	if (err)
		return err;
	if (value < 256)
		m->small[value] = ref;
	return push(m, ref);
}

/* n bytes with a sign. */
static int take_signed(struct machine *m, size_t n, uint64_t *out)
{
	int err = take_number(m, n, out);

	if (!err && n && n < 8 && *out >> (8 * n - 1))
		*out |= UINT64_MAX << (8 * n);
	return err;
}

/* arg bytes, unsigned but for the one of four. */
static int op_int(struct machine *m, unsigned arg)
{
	uint64_t value;
	int err = arg == 4 ? take_signed(m, arg, &value)
			   : take_number(m, arg, &value);

	return err ? err : push_int(m, value);
}

/* A length in arg bytes, then so many of the number. */
static int op_long(struct machine *m, unsigned arg)
{
	const uint8_t *bytes;
	uint64_t len, value;
	int err = take_number(m, arg, &len);

	if (err)
		return err;
	if (len <= 8) {
		err = take_signed(m, len, &value);
		return err ? err : push_int(m, value);
	}
	err = take(m, len, &bytes);
	return err ? err : push(m, NODE_OTHER);
}

static int push_text(struct machine *m, uint32_t kind, unsigned len_bytes)
{
	struct node node = { .kind = kind };
	const uint8_t *bytes;
	uint64_t len;
	int err = take_number(m, len_bytes, &len);

	if (err)
		return err;
	node.text.off = (uint32_t)m->at;
	node.text.len = (uint32_t)len;
	err = take(m, len, &bytes);
	return err ? err : push_node(m, &node);
}

static int op_text(struct machine *m, unsigned arg)
{
	return push_text(m, PICKLE_TEXT, arg);
}

static int op_bytes(struct machine *m, unsigned arg)
{
	return push_text(m, PICKLE_BYTES, arg);
}

static int take_line(struct machine *m, uint32_t *off, uint32_t *len)
{
	const uint8_t *from = m->p->buf + m->at;
	const uint8_t *end = memchr(from, '\n', m->p->len - m->at);

	if (!end)
		return -ENOMSG;
	*off = (uint32_t)m->at;
	*len = (uint32_t)(end - from);
	m->at += *len + 1;
	return 0;
}

static int op_global(struct machine *m, unsigned arg)
{
	struct node node = { .kind = PICKLE_GLOBAL };
	int err = take_line(m, &node.global.module, &node.global.module_len);

	(void)arg;
	if (!err)
		err = take_line(m, &node.global.name, &node.global.name_len);
	return err ? err : push_node(m, &node);
}

static int op_stack_global(struct machine *m, unsigned arg)
{
	struct node node = { .kind = PICKLE_GLOBAL };
	const struct node *module, *name;
	uint32_t refs[2];

	(void)arg;
	if (pop(m, &refs[1]) || pop(m, &refs[0]))
		return -ENOMSG;
	module = node_at(m->p, refs[0]);
	name = node_at(m->p, refs[1]);
	if (module->kind != PICKLE_TEXT || name->kind != PICKLE_TEXT)
		return -ENOMSG;
	node.global.module = module->text.off;
	node.global.module_len = module->text.len;
	node.global.name = name->text.off;
	node.global.name_len = name->text.len;
	return push_node(m, &node);
}

/* An empty container of kind arg. */
static int op_container(struct machine *m, unsigned arg)
{
	const struct node node = { .kind = arg };

	return push_node(m, &node);
}

static int op_mark(struct machine *m, unsigned arg)
{
	(void)arg;
	return pickle_push_number(m->p, &m->marks, m->stack.n);
}

static int op_tuple(struct machine *m, unsigned arg)
{
	const uint32_t *from;
	uint32_t n;
	int err = pop_mark(m, &from, &n);

	(void)arg;
	return err ? err : tuple_new(m, from, n);
}

/* Of the upper arg of the stack. */
static int op_tuple_of(struct machine *m, unsigned arg)
{
	if (reachable(m) < arg)
		return -ENOMSG;
	m->stack.n -= arg;
	return tuple_new(m, (const uint32_t *)m->stack.at + m->stack.n, arg);
}

static int op_frozenset(struct machine *m, unsigned arg)
{
	const struct node node = { .kind = PICKLE_SET };
	const uint32_t *from;
	uint32_t n, ref;
	int err = pop_mark(m, &from, &n);

	(void)arg;
	if (!err)
		err = pickle_node_new(m->p, &node, &ref);
	if (!err)
		err = pickle_items_add(m->p, ref, from, n);
	return err ? err : push(m, ref);
}

/* APPENDS, SETITEMS, ADDITEMS: to a container of kind arg. */
static int op_add_all(struct machine *m, unsigned arg)
{
	const uint32_t *from;
	uint32_t n;
	int err = pop_mark(m, &from, &n);

	return err ? err : add_to(m, arg, from, n);
}

static int op_append(struct machine *m, unsigned arg)
{
	uint32_t ref;
	int err = pop(m, &ref);

	return err ? err : add_to(m, arg, &ref, 1);
}

static int op_setitem(struct machine *m, unsigned arg)
{
	uint32_t pair[2];

	if (pop(m, &pair[1]) || pop(m, &pair[0]))
		return -ENOMSG;
	return add_to(m, arg, pair, 2);
}

/* Calls of kind arg: what to call, and a tuple. */
static int op_call(struct machine *m, unsigned arg)
{
	struct node node = { .kind = arg };

	if (pop(m, &node.object.args) || pop(m, &node.object.call))
		return -ENOMSG;
	if (node_at(m->p, node.object.args)->kind != PICKLE_TUPLE)
		return -ENOMSG;
	return push_node(m, &node);
}

/* With arguments by name, which no reader asks for. */
static int op_call_named(struct machine *m, unsigned arg)
{
	uint32_t named;
	int err = pop(m, &named);

	return err ? err : op_call(m, arg);
}

static int op_persid(struct machine *m, unsigned arg)
{
	struct node node = { .kind = PICKLE_PERSID };
	int err = pop(m, &node.object.call);

	(void)arg;
	return err ? err : push_node(m, &node);
}

static int op_build(struct machine *m, unsigned arg)
{
	struct node *node;
	uint32_t state;
	int err = pop(m, &state);

	(void)arg;
	if (err || !reachable(m))
		return -ENOMSG;
	node = node_at(m->p, number_at(&m->stack, m->stack.n - 1));
	if (!is_object(node->kind))
		return -ENOMSG;
	node->object.state = state;
	return 0;
}

static int op_pop(struct machine *m, unsigned arg)
{
	uint32_t ref;

	(void)arg;
	return pop(m, &ref);
}

static int op_pop_mark(struct machine *m, unsigned arg)
{
	const uint32_t *from;
	uint32_t n;

	(void)arg;
	return pop_mark(m, &from, &n);
}

static int op_dup(struct machine *m, unsigned arg)
{
	(void)arg;
	return reachable(m) ? push(m, number_at(&m->stack, m->stack.n - 1))
			    : -ENOMSG;
}

/* ---- memo ---- */

static int memo_put(struct machine *m, uint64_t i)
{
	struct array *memo = &m->memo;
	int err;

	if (!reachable(m) || i >= m->p->len)
		return -ENOMSG;
	if (i >= memo->n) {
		err = pickle_reserve(m->p, memo, sizeof(uint32_t),
				     i - memo->n + 1);
		if (err)
			return err;
		memset((uint32_t *)memo->at + memo->n, 0,
		       (i - memo->n + 1) * sizeof(uint32_t));
		memo->n = (uint32_t)i + 1;
	}
	((uint32_t *)memo->at)[i] = number_at(&m->stack, m->stack.n - 1);
	return 0;
}

static int op_put(struct machine *m, unsigned arg)
{
	uint64_t i;
	int err = take_number(m, arg, &i);

	return err ? err : memo_put(m, i);
}

static int op_memoize(struct machine *m, unsigned arg)
{
	(void)arg;
	return memo_put(m, m->memo.n);
}

static int op_get(struct machine *m, unsigned arg)
{
	uint64_t i;
	uint32_t ref;
	int err = take_number(m, arg, &i);

	if (err)
		return err;
	ref = i < m->memo.n ? number_at(&m->memo, (uint32_t)i) : 0;
	return ref ? push(m, ref) : -ENOMSG;
}

/* ---- the table ---- */

struct op {
	int (*run)(struct machine *m, unsigned arg);
	unsigned arg;
};

static const struct op ops[256] = {
	[0x80] = { op_proto, 0 },
	[0x95] = { op_frame, 0 },
	['.'] = { op_stop, 0 },

	['N'] = { op_fixed, NODE_NONE },
	[0x88] = { op_fixed, NODE_TRUE },
	[0x89] = { op_fixed, NODE_FALSE },
	[')'] = { op_fixed, NODE_EMPTY },
	['G'] = { op_float, 8 },
	['K'] = { op_int, 1 },
	['M'] = { op_int, 2 },
	['J'] = { op_int, 4 },
	[0x8a] = { op_long, 1 },
	[0x8b] = { op_long, 4 },

	[0x8c] = { op_text, 1 },
	['X'] = { op_text, 4 },
	[0x8d] = { op_text, 8 },
	['U'] = { op_text, 1 }, /* Python 2's str */
	['T'] = { op_text, 4 },
	['C'] = { op_bytes, 1 },
	['B'] = { op_bytes, 4 },
	[0x8e] = { op_bytes, 8 },
	[0x96] = { op_bytes, 8 }, /* bytearray */

	['c'] = { op_global, 0 },
	[0x93] = { op_stack_global, 0 },

	['('] = { op_mark, 0 },
	['t'] = { op_tuple, 0 },
	[0x85] = { op_tuple_of, 1 },
	[0x86] = { op_tuple_of, 2 },
	[0x87] = { op_tuple_of, 3 },
	[']'] = { op_container, PICKLE_LIST },
	['}'] = { op_container, PICKLE_DICT },
	[0x8f] = { op_container, PICKLE_SET },
	[0x91] = { op_frozenset, 0 },
	['a'] = { op_append, PICKLE_LIST },
	['e'] = { op_add_all, PICKLE_LIST },
	['s'] = { op_setitem, PICKLE_DICT },
	['u'] = { op_add_all, PICKLE_DICT },
	[0x90] = { op_add_all, PICKLE_SET },

	['R'] = { op_call, PICKLE_REDUCE },
	[0x81] = { op_call, PICKLE_NEWOBJ },
	[0x92] = { op_call_named, PICKLE_NEWOBJ },
	['Q'] = { op_persid, 0 },
	['b'] = { op_build, 0 },

	['0'] = { op_pop, 0 },
	['1'] = { op_pop_mark, 0 },
	['2'] = { op_dup, 0 },
	['q'] = { op_put, 1 },
	['r'] = { op_put, 4 },
	[0x94] = { op_memoize, 0 },
	['h'] = { op_get, 1 },
	['j'] = { op_get, 4 },
};

static int run(struct machine *m)
{
	const uint8_t *code;
	int err = pickle_make_fixed(m->p);

	/* A stack that has a place, also while nothing is on it. */
	if (!err)
		err = pickle_reserve(m->p, &m->stack, sizeof(uint32_t), 1);
	/* Protocols 0 and 1 have no such first byte. */
	if (!err && (!m->p->len || m->p->buf[0] != 0x80))
		return -ENOMSG;
	while (!err && !m->stopped) {
		err = take(m, 1, &code);
		if (!err)
			err = ops[*code].run ? ops[*code].run(m, ops[*code].arg)
					     : -ENOMSG;
	}
	return err;
}

int pickle_parse(const uint8_t *buf, size_t len, size_t memory,
		 struct pickle **out)
{
	CLEANUP(pickle_freep) struct pickle *p = NULL;
	struct machine *m;
	int err;

	if (len > INT32_MAX)
		return -E2BIG;
	p = calloc(1, sizeof(*p));
	m = calloc(1, sizeof(*m));
	if (!p || !m) {
		free(m);
		return -ENOMEM;
	}
	p->buf = buf;
	p->len = len;
	p->memory = memory;
	m->p = p;
	err = run(m);
	free(m->stack.at);
	free(m->marks.at);
	free(m->memo.at);
	free(m);
	if (!err)
		*out = MOVE(p);
	return err;
}
