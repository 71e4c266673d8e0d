/* A repeated hit from memory in one call: what repeated.py does for it, without the interpreter.
 *
 * Heads.answer compares a head with its template, verifies its signature, compares everything that may have changed since the
 * object was last sent, and sends it. If anything differs it has done nothing, and the Python code decides. Only that code draws
 * conclusions: it lists the guards to compare, prepares the text to sign once a second, and counts the answers later. So this
 * file knows neither rights nor freshness. docs/decisions/0065 says what it saves.
 *
 * Guards are tuples, which hold if
 *
 *     (IS, object, name, value)        the attribute is this object
 *     (ITEM, mapping, key, value)      the item of a dict is this object
 *     (AT, sequence, index, number)    the item of a sequence equals this number
 *     (MOST, object, name, number)     the attribute is at most this number
 *     (UNTIL, object, name, None)      the attribute, on the monotonic clock, has not come
 *
 * The stable ABI suffices, so one library serves every Python from 3.11. SHA-256 is libcrypto's, in place: hashlib's objects cost
 * more than the blocks that they hash. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

#define LONGEST 8192 /* bytes of a head, as in template.py */
#define MOST_SLOTS 8
#define DATE 16
#define SIGNATURE 64

/* SHA256_CTX of openssl/sha.h, the same since OpenSSL 0.9.8. */
typedef struct {
    uint32_t h[8], low, high, data[16];
    unsigned int num, length;
} Hash;

static int (*hash_init)(Hash *);
static int (*hash_update)(Hash *, const void *, size_t);
static int (*hash_final)(unsigned char *, Hash *);
static int (*differ)(const void *, const void *, size_t);

static char plain[256]; /* the bytes of paths and slots: unreserved characters and slashes (RFC 3986, section 2.3) */

static void hex_of(char *out, const unsigned char *bytes, int count) {
    for (int i = 0; i < count; i++) {
        out[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
}

static double seconds_of(clockid_t clock, time_t *whole) {
    struct timespec time;
    clock_gettime(clock, &time);
    if (whole) *whole = time.tv_sec;
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Names of attributes, as strings that the interpreter shares. */
enum { GUARDS_NAME, BODY, DESCRIPTOR, NAMES };
static PyObject *names[NAMES];

enum { IS, ITEM, AT, MOST, UNTIL };
static const char *const KINDS[] = {"IS", "ITEM", "AT", "MOST", "UNTIL"};

/* Whether a guard holds at a moment of the monotonic clock. An error may be set, for the caller to clear. */
static int holds(PyObject *guard, double at) {
    if (PyTuple_Size(guard) != 4) return 0;
    long kind = PyLong_AsLong(PyTuple_GetItem(guard, 0));
    PyObject *object = PyTuple_GetItem(guard, 1), *name = PyTuple_GetItem(guard, 2), *expected = PyTuple_GetItem(guard, 3);
    PyObject *value;
    int held;
    if (kind == ITEM) return PyDict_GetItemWithError(object, name) == expected;
    value = kind == AT ? PySequence_GetItem(object, PyLong_AsSsize_t(name)) : PyObject_GetAttr(object, name);
    if (!value) return 0;
    if (kind == AT)
        held = PyObject_RichCompareBool(value, expected, Py_EQ) == 1;
    else if (kind == MOST)
        held = PyFloat_AsDouble(value) <= PyFloat_AsDouble(expected);
    else if (kind == UNTIL)
        held = at < PyFloat_AsDouble(value);
    else
        held = value == expected;
    Py_DECREF(value);
    return held;
}

/* Whether guards hold; None never does. */
static int all_hold(PyObject *guards, double at) {
    Py_ssize_t count = guards == Py_None ? -1 : PyTuple_Size(guards);
    if (count < 0) return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!holds(PyTuple_GetItem(guards, i), at)) return 0;
    return !PyErr_Occurred();
}

/* Heads(reads, shape, slots, order, date, signature): the repeated heads of one connection.
 *
 * reads       has the attribute guards, those of all requests of the connection, which may be replaced, and what HELD names:
 *               objects   by path, tuples of the objects that may be sent again, see READY
 *               answered  the list of the answers to count, tuples (sent, reads, seconds since the epoch, seconds taken)
 *               drain     counts them; called when there are MANY
 *               channel, ids   as in repeated.py
 *               begin     from a date, the text that all requests of a second share, see begin()
 *               lines     from a second, the last lines of an answer's head
 *               general   answers what this cannot
 * shape       the accepted head from the end of its path
 * slots       the spans in it that vary, by place; of these, date and signature are the numbers of the date and of the signature
 * order       the numbers of the slots that are signed, by place in the canonical request */

enum { OBJECTS, ANSWERED, DRAIN, CHANNEL, IDS, BEGIN, LINES, GENERAL, COUNTED, NAMED, READS = NAMED, SHAPE, PIECES, DATED, ALL };
static const char *const HELD[] = {"objects", "answered", "drain", "channel", "ids", "begin", "lines", "general", "reads"};
#define MANY 256

/* A tuple: an object in memory that readers of one kind may be sent again from one moment to before another, in seconds since
 * the epoch, while the guards hold. sent is noted for each answer; head is the answer's up to the request's number; the attribute
 * body of copy has size bytes, or none any more. */
enum { SENT, HEAD, COPY, SIZE, SINCE, BEFORE, GUARDS, READY };

typedef struct {
    PyObject_HEAD
    PyObject *held[ALL];
    struct {
        Py_ssize_t begin, end;
    } slots[MOST_SLOTS];
    Py_ssize_t size;
    int slot_count, date, signature, order[MOST_SLOTS], order_count;
    char signed_date[DATE];
    Hash begun, outer;
    double since, until;
    time_t second;
} Heads;

static int heads_init(Heads *self, PyObject *args, PyObject *kwargs) {
    PyObject *reads, *shape, *slots, *order;
    Py_ssize_t at = 0;
    if (self->held[READS]) return PyErr_SetString(PyExc_TypeError, "made once"), -1;
    if (!PyArg_ParseTuple(args, "OSO!O!ii", &reads, &shape, &PyTuple_Type, &slots, &PyTuple_Type, &order, &self->date,
                          &self->signature))
        return -1;
    for (int i = 0; i < NAMED; i++)
        if (!(self->held[i] = PyObject_GetAttrString(reads, HELD[i]))) return -1;
    self->held[READS] = Py_NewRef(reads);
    self->held[SHAPE] = Py_NewRef(shape);
    self->size = PyBytes_Size(shape);
    self->second = -1;
    Py_ssize_t slot_count = PyTuple_Size(slots), order_count = PyTuple_Size(order);
    if (slot_count > MOST_SLOTS || order_count > MOST_SLOTS || !PyDict_Check(self->held[OBJECTS])) goto wrong;
    for (; self->slot_count < slot_count; self->slot_count++) {
        Py_ssize_t *begin = &self->slots[self->slot_count].begin, *end = &self->slots[self->slot_count].end;
        if (!PyArg_ParseTuple(PyTuple_GetItem(slots, self->slot_count), "nn", begin, end)) return -1;
        if (*begin < at || *end < *begin || *end > self->size) goto wrong;
        at = *end;
    }
    for (; self->order_count < order_count; self->order_count++) {
        long slot = PyLong_AsLong(PyTuple_GetItem(order, self->order_count));
        if (slot < 0 || slot >= slot_count) goto wrong;
        self->order[self->order_count] = (int)slot;
    }
    int date = self->date, signature = self->signature;
    if (date >= 0 && date < slot_count && self->slots[date].end - self->slots[date].begin == DATE && signature >= 0 &&
        signature < slot_count && self->slots[signature].end - self->slots[signature].begin == SIGNATURE)
        return 0;
wrong:
    return PyErr_SetString(PyExc_ValueError, "no shape of a signed head"), -1;
}

static int heads_traverse(Heads *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE((PyObject *)self));
    for (int i = 0; i < ALL; i++) Py_VISIT(self->held[i]);
    return 0;
}

static int heads_clear(Heads *self) {
    for (int i = 0; i < ALL; i++) Py_CLEAR(self->held[i]);
    return 0;
}

static void heads_dealloc(Heads *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    PyObject_GC_UnTrack(self);
    heads_clear(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

/* The end of the path, if bytes are one head of this shape; otherwise 0. template.py says why that is safe. */
static Py_ssize_t match(const Heads *self, const char *head, Py_ssize_t size) {
    Py_ssize_t end = 5, at = 0;
    if (size > LONGEST || size < self->size + 5 || memcmp(head, "GET /", 5)) return 0;
    while (end < size && plain[(unsigned char)head[end]]) end++;
    if (size - end != self->size) return 0;
    const char *rest = head + end, *shape = PyBytes_AsString(self->held[SHAPE]);
    for (int i = 0; i < self->slot_count; i++) {
        Py_ssize_t begin = self->slots[i].begin;
        if (memcmp(rest + at, shape + at, begin - at)) return 0;
        for (at = begin; at < self->slots[i].end; at++)
            if (!plain[(unsigned char)rest[at]]) return 0;
    }
    return memcmp(rest + at, shape + at, self->size - at) ? 0 : end;
}

/* Prepare what all requests of a second share; 0: the date is invalid, or an error is set. The attribute begin gives the signing
 * key, the string to sign up to the digest, the pieces of the canonical request around path and slots, and from when to before
 * when the date counts. */
static int begin(Heads *self, const char *date) {
    PyObject *text = PyObject_CallFunction(self->held[BEGIN], "y#", date, (Py_ssize_t)DATE), *pieces;
    const char *key, *first;
    Py_ssize_t key_size, first_size;
    unsigned char block[64] = {0};
    int valid = text && text != Py_None &&
                PyArg_ParseTuple(text, "y#y#O!dd", &key, &key_size, &first, &first_size, &PyTuple_Type, &pieces, &self->since,
                                 &self->until) &&
                key_size <= 64 && PyTuple_Size(pieces) == self->order_count + 2;
    if (valid) {
        memcpy(block, key, key_size);
        for (int i = 0; i < 64; i++) block[i] ^= 0x36; /* HMAC, RFC 2104 */
        hash_init(&self->begun);
        hash_update(&self->begun, block, 64);
        hash_update(&self->begun, first, first_size);
        for (int i = 0; i < 64; i++) block[i] ^= 0x36 ^ 0x5c;
        hash_init(&self->outer);
        hash_update(&self->outer, block, 64);
        Py_XDECREF(self->held[PIECES]);
        self->held[PIECES] = Py_NewRef(pieces);
        memcpy(self->signed_date, date, DATE);
    }
    Py_XDECREF(text);
    return valid;
}

/* Whether the signature of a matching head is right, by SigV4. */
static int verified(const Heads *self, const char *head, Py_ssize_t end) {
    unsigned char digest[32];
    char hex[64];
    const char *rest = head + end;
    Hash text, inner = self->begun, outer = self->outer;
    hash_init(&text);
    for (int i = 0; i < self->order_count + 2; i++) {
        PyObject *piece = PyTuple_GetItem(self->held[PIECES], i);
        hash_update(&text, PyBytes_AsString(piece), PyBytes_Size(piece));
        if (i == 0) {
            hash_update(&text, head + 4, end - 4);
        } else if (i <= self->order_count) {
            int slot = self->order[i - 1];
            hash_update(&text, rest + self->slots[slot].begin, self->slots[slot].end - self->slots[slot].begin);
        }
    }
    hash_final(digest, &text);
    hex_of(hex, digest, 32);
    hash_update(&inner, hex, 64);
    hash_final(digest, &inner);
    hash_update(&outer, digest, 32);
    hash_final(digest, &outer);
    hex_of(hex, digest, 32);
    return !differ(hex, rest + self->slots[self->signature].begin, SIGNATURE);
}

/* Keep the last lines of the heads of a second's answers; 0: an error is set. */
static int date_answers(Heads *self, time_t second) {
    if (second == self->second) return 1;
    PyObject *lines = PyObject_CallFunction(self->held[LINES], "L", (long long)second);
    if (!lines) return 0;
    Py_XDECREF(self->held[DATED]);
    self->held[DATED] = lines;
    self->second = second;
    return PyBytes_Check(lines);
}

/* Send an object, and note the answer; -1, with an error: bytes were sent, but what follows failed. */
static int send_it(Heads *self, PyObject *ready, PyObject *body, int out, uint64_t serial, double now, double at) {
    char number[18];
    PyObject *head = PyTuple_GetItem(ready, HEAD), *lines = self->held[DATED], *done;
    for (int i = 0; i < 16; i++) number[i] = "0123456789ABCDEF"[serial >> (60 - 4 * i) & 15];
    memcpy(number + 16, "\r\n", 2);
    struct iovec parts[] = {{PyBytes_AsString(head), PyBytes_Size(head)},
                            {number, sizeof number},
                            {PyBytes_AsString(lines), PyBytes_Size(lines)},
                            {PyBytes_AsString(body), PyBytes_Size(body)}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 4};
    ssize_t all = parts[0].iov_len + parts[1].iov_len + parts[2].iov_len + parts[3].iov_len;
    ssize_t sent = sendmsg(out, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent != all) {
        Py_ssize_t taken = sent >= 0 ? sent : errno == EAGAIN || errno == EINTR ? 0 : -1;
        done = PyObject_CallMethod(self->held[CHANNEL], "keep", "(Oy#OO)n", head, number, (Py_ssize_t)sizeof number, lines, body,
                                   taken);
        if (!done) return -1;
        Py_DECREF(done);
    }
    double seconds = seconds_of(CLOCK_MONOTONIC, NULL) - at;
    done = Py_BuildValue("(OOdd)", PyTuple_GetItem(ready, SENT), self->held[COUNTED], now, seconds);
    int noted = done ? PyList_Append(self->held[ANSWERED], done) : -1;
    Py_XDECREF(done);
    if (noted < 0 || PyList_Size(self->held[ANSWERED]) < MANY) return noted < 0 ? -1 : 1;
    done = PyObject_CallFunctionObjArgs(self->held[DRAIN], NULL);
    Py_XDECREF(done);
    return done ? 1 : -1;
}

/* Whether a head was answered. 0: nothing has happened, though an error may be set; see send_it for -1. */
static int answered(Heads *self, const char *head, Py_ssize_t size) {
    Py_ssize_t end = match(self, head, size);
    time_t second;
    int done = 0;
    PyObject *body = NULL, *serial = NULL;
    if (!end) return 0;
    double at = seconds_of(CLOCK_MONOTONIC, NULL), now = seconds_of(CLOCK_REALTIME, &second);
    PyObject *guards = PyObject_GetAttr(self->held[READS], names[GUARDS_NAME]);
    PyObject *path = guards && all_hold(guards, at) ? PyBytes_FromStringAndSize(head + 4, end - 4) : NULL;
    PyObject *ready = path ? PyDict_GetItemWithError(self->held[OBJECTS], path) : NULL;
    Py_XDECREF(guards);
    Py_XDECREF(path);
    if (!ready || PyTuple_Size(ready) != READY) return 0;
    Py_INCREF(ready);
    const char *date = head + end + self->slots[self->date].begin;
    PyObject *descriptor = PyObject_GetAttr(self->held[CHANNEL], names[DESCRIPTOR]);
    int out = descriptor ? (int)PyLong_AsLong(descriptor) : -1;
    Py_XDECREF(descriptor);
    if (out < 0 || !(PyFloat_AsDouble(PyTuple_GetItem(ready, SINCE)) <= now)) goto end;
    if (!(now < PyFloat_AsDouble(PyTuple_GetItem(ready, BEFORE))) || !all_hold(PyTuple_GetItem(ready, GUARDS), at)) goto end;
    body = PyObject_GetAttr(PyTuple_GetItem(ready, COPY), names[BODY]);
    if (!body || !PyBytes_Check(body) || PyBytes_Size(body) != PyLong_AsSsize_t(PyTuple_GetItem(ready, SIZE))) goto end;
    if ((!self->held[PIECES] || memcmp(date, self->signed_date, DATE)) && !begin(self, date)) goto end;
    if (!(self->since <= now && now < self->until) || !verified(self, head, end) || !date_answers(self, second)) goto end;
    serial = PyIter_Next(self->held[IDS]);
    if (serial && !PyErr_Occurred())
        done = send_it(self, ready, body, out, PyLong_AsUnsignedLongLongMask(serial), now, at);
end:
    Py_XDECREF(serial);
    Py_XDECREF(body);
    Py_DECREF(ready);
    return done;
}

static PyObject *heads_answer(Heads *self, PyObject *head) {
    int done = PyBytes_Check(head) ? answered(self, PyBytes_AsString(head), PyBytes_Size(head)) : 0;
    if (done) return done < 0 ? NULL : Py_NewRef(Py_True);
    PyErr_Clear(); /* the Python code meets the same error, and answers */
    return PyObject_CallFunctionObjArgs(self->held[GENERAL], head, NULL);
}

static PyMethodDef heads_methods[] = {
    {"answer", (PyCFunction)heads_answer, METH_O, "Answer bytes that are one head of this shape; returns whether they were."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot heads_slots[] = {
    {Py_tp_doc, "The repeated heads of one connection."}, {Py_tp_init, heads_init},       {Py_tp_traverse, heads_traverse},
    {Py_tp_clear, heads_clear},                           {Py_tp_dealloc, heads_dealloc}, {Py_tp_methods, heads_methods},
    {0, NULL},
};
static PyType_Spec heads_spec = {"gateway.api.s3._repeated.Heads", sizeof(Heads), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                 heads_slots};

/* Whether libcrypto is here, and hashes. */
static int find_libcrypto(void) {
    static const char *const names[] = {"libcrypto.so.3", "libcrypto.so.1.1", "libcrypto.so"};
    static const unsigned char known[] = {0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea}; /* of "abc", FIPS 180-4 */
    unsigned char digest[32];
    Hash text;
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) return 0;
    *(void **)&hash_init = dlsym(library, "SHA256_Init");
    *(void **)&hash_update = dlsym(library, "SHA256_Update");
    *(void **)&hash_final = dlsym(library, "SHA256_Final");
    *(void **)&differ = dlsym(library, "CRYPTO_memcmp");
    if (!hash_init || !hash_update || !hash_final || !differ) return 0;
    hash_init(&text);
    hash_update(&text, "abc", 3);
    hash_final(digest, &text);
    return !memcmp(digest, known, sizeof known);
}

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_repeated", .m_size = -1};

PyMODINIT_FUNC PyInit__repeated(void) {
    const char *bytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    if (!find_libcrypto()) return PyErr_SetString(PyExc_ImportError, "no libcrypto with SHA-256"), NULL;
    while (*bytes) plain[(unsigned char)*bytes++] = 1;
    names[GUARDS_NAME] = PyUnicode_InternFromString("guards");
    names[BODY] = PyUnicode_InternFromString("body");
    names[DESCRIPTOR] = PyUnicode_InternFromString("descriptor");
    PyObject *made = PyModule_Create(&module), *heads = PyType_FromSpec(&heads_spec);
    if (!made || !heads || PyErr_Occurred() || PyModule_AddObjectRef(made, "Heads", heads) < 0) return NULL;
    Py_DECREF(heads);
    for (int kind = IS; kind <= UNTIL; kind++)
        if (PyModule_AddIntConstant(made, KINDS[kind], kind) < 0) return NULL;
    return made;
}
