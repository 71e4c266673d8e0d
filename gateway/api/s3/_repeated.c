/* A repeated hit in one call: what repeated.py does for it, without the interpreter.
 *
 * answer() compares a head with its template, verifies its signature, compares everything that may have changed since the object
 * was last sent, and sends it, or a range of it. If anything differs it has done nothing, and the Python code decides. Only that
 * code draws conclusions: it lists the guards to compare, prepares the text to sign once a second, and counts the answers later.
 * So this file knows neither rights nor freshness. docs/decisions/0065 says what it saves.
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

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LONGEST 8192 /* bytes of a head, as in template.py */
#define MOST_SLOTS 8
#define LARGEST (1024 * 1024) /* bytes that are sent from a file */
#define CACHESTAT 451
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
enum { GUARDS_NAME, BODY, DESCRIPTOR, FD, NAMES };
static PyObject *names[NAMES];

enum { IS, ITEM, AT, MOST, UNTIL };
static const char *const KINDS[] = {"IS", "ITEM", "AT", "MOST", "UNTIL"};

/* Whether a guard holds at a moment of the monotonic clock. An error may be set, for the caller to clear. */
static int holds(PyObject *guard, double at) {
    if (PyTuple_Size(guard) != 4) return 0;
    long kind = PyLong_AsLong(PyTuple_GetItem(guard, 0));
    PyObject *object = PyTuple_GetItem(guard, 1), *name = PyTuple_GetItem(guard, 2), *expected = PyTuple_GetItem(guard, 3), *value;
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

/* The repeated heads of one connection are a list and a State. The list has what CompiledReads names so, and
 *
 * objects     by path, tuples of the objects that may be sent again, see READY
 * answered    the list of the answers to count, tuples (sent, reads, seconds since the epoch, seconds taken, first byte, end);
 *             drain counts them, called when there are MANY
 * guarded     its attribute guards has those of all requests of the connection
 * shape       the accepted head from the end of its path, without the value of Range
 * pieces, dated   what begin gave for the last date, and lines for the last second; None at first */

enum { OBJECTS, ANSWERED, DRAIN, CHANNEL, IDS, BEGIN, LINES, GENERAL, GUARDED, READS, SHAPE, PIECES, DATED, ALL };
#define HELD(name) PyList_GetItem(held, name)
#define MANY 256

/* A tuple: an object that readers of one kind may be sent again from one moment to before another, in seconds since the epoch,
 * while the guards hold. sent is noted for each answer; head is the answer's up to the request's number, or up to the lines that
 * name a range. The attribute body of copy has size bytes, or none any more; or copy is a dict of the object's blocks by number,
 * with a tuple for each: the dict that has it while it is open, the key, size, time of change in nanoseconds, guards. */
enum { SENT, HEAD, COPY, SIZE, BLOCK_SIZE, SINCE, BEFORE, GUARDS, READY };

typedef struct {
    Py_ssize_t size, ranged; /* of the shape; where the value of Range was taken out of it, or -1 */
    Py_ssize_t slots[MOST_SLOTS][2], slot_count, date, signature; /* the spans that vary, by place; two of them */
    Py_ssize_t order[MOST_SLOTS], order_count; /* the slots that are signed, by place in the text; slot_count means Range */
    char signed_date[DATE]; /* this and the rest begin as zeros, what is above is set by compiled.py */
    Hash begun, outer;
    double since, until;
    time_t second;
} State;

typedef struct {
    const char *text; /* the value of Range, the only one whose length varies; NULL: the whole object is wanted */
    Py_ssize_t size;
    long long first, last; /* bytes of the object; first lies at offset in file */
    off_t offset;
    int file;
} Range;

static Py_ssize_t path_end(const char *head, Py_ssize_t size) {
    Py_ssize_t end = 5;
    while (end < size && plain[(unsigned char)head[end]]) end++;
    return end;
}

/* A number of up to 18 digits, and go behind it; -1 without any. */
static long long number_at(const char **at) {
    const char *first = *at;
    long long number = 0;
    while (**at >= '0' && **at <= '9' && *at - first < 18) number = 10 * number + *(*at)++ - '0';
    return *at == first ? -1 : number;
}

/* Copy a head without the value of Range; returns the size of the copy, or 0 if that value is not bytes=FIRST-LAST. */
static Py_ssize_t take_range(const State *self, const char *head, Py_ssize_t size, char *copy, Range *range) {
    Py_ssize_t at = path_end(head, size) + self->ranged;
    const char *next = head + at + 6;
    if (size > LONGEST || at >= size || strncmp(head + at, "bytes=", 6)) return 0;
    range->first = number_at(&next);
    if (*next++ != '-' || range->first < 0) return 0;
    range->last = number_at(&next);
    if (*next != '\r' || range->last < range->first) return 0;
    range->text = head + at;
    range->size = next - range->text;
    memcpy(copy, head, at);
    memcpy(copy + at, next, size - at - range->size);
    return size - range->size;
}

/* The end of the path, if bytes are one head of this shape; otherwise 0. template.py says why that is safe. */
static Py_ssize_t match(const State *self, const char *shape, const char *head, Py_ssize_t size) {
    Py_ssize_t end = path_end(head, size), at = 0;
    if (size > LONGEST || size - end != self->size || memcmp(head, "GET /", 5)) return 0;
    const char *rest = head + end;
    for (int i = 0; i < self->slot_count; i++) {
        Py_ssize_t begin = self->slots[i][0];
        if (memcmp(rest + at, shape + at, begin - at)) return 0;
        for (at = begin; at < self->slots[i][1]; at++)
            if (!plain[(unsigned char)rest[at]]) return 0;
    }
    return memcmp(rest + at, shape + at, self->size - at) ? 0 : end;
}

/* Prepare what all requests of a second share; 0: the date is invalid, or an error is set. begin gives what HMAC hashes before
 * the digest and the inner hash, the pieces of the text around path and slots, and from when to before when the date counts. */
static int begin(State *self, PyObject *held, const char *date) {
    PyObject *text = PyObject_CallFunction(HELD(BEGIN), "y#", date, (Py_ssize_t)DATE), *pieces;
    const char *inner, *outer;
    Py_ssize_t inner_size, outer_size;
    int valid = text && text != Py_None &&
                PyArg_ParseTuple(text, "y#y#O!dd", &inner, &inner_size, &outer, &outer_size, &PyTuple_Type, &pieces, &self->since,
                                 &self->until) &&
                PyTuple_Size(pieces) == self->order_count + 2;
    if (valid) {
        hash_init(&self->begun);
        hash_update(&self->begun, inner, inner_size);
        hash_init(&self->outer);
        hash_update(&self->outer, outer, outer_size);
        PyList_SetItem(held, PIECES, Py_NewRef(pieces));
        memcpy(self->signed_date, date, DATE);
    }
    Py_XDECREF(text);
    return valid;
}

/* Whether the signature of a matching head is right, by SigV4. */
static int verified(const State *self, PyObject *pieces, const char *head, Py_ssize_t end, const Range *range) {
    unsigned char digest[32];
    char hex[64];
    const char *rest = head + end;
    Hash text, inner = self->begun, outer = self->outer;
    hash_init(&text);
    for (int i = 0; i < self->order_count + 2; i++) {
        PyObject *piece = PyTuple_GetItem(pieces, i);
        Py_ssize_t slot = i && i <= self->order_count ? self->order[i - 1] : -1, ranged = slot == self->slot_count;
        hash_update(&text, PyBytes_AsString(piece), PyBytes_Size(piece));
        if (i == 0) hash_update(&text, head + 4, end - 4);
        if (ranged) hash_update(&text, range->text, range->size);
        else if (slot >= 0) hash_update(&text, rest + self->slots[slot][0], self->slots[slot][1] - self->slots[slot][0]);
    }
    hash_final(digest, &text);
    hex_of(hex, digest, 32);
    hash_update(&inner, hex, 64);
    hash_final(digest, &inner);
    hash_update(&outer, digest, 32);
    hash_final(digest, &outer);
    hex_of(hex, digest, 32);
    return !differ(hex, rest + self->slots[self->signature][0], SIGNATURE);
}

/* Find the open file of a block, unchanged and with the bytes in memory, so that no disk is waited for; 0: none. */
static int find_file(PyObject *ready, Range *range, double at) {
    long long size = PyLong_AsLongLong(PyTuple_GetItem(ready, SIZE)), file_size, changed;
    long long block_size = PyLong_AsLongLong(PyTuple_GetItem(ready, BLOCK_SIZE)), first = range->first;
    PyObject *guards, *number, *block, *opened, *digest, *fd = NULL;
    uint64_t span[2], pages[5]; /* of cachestat(2), since Linux 6.5; pages[0] are in memory, or on their way */
    struct stat status;
    if (range->last >= size) range->last = size - 1;
    if (block_size <= 0 || first > range->last || range->last - first >= LARGEST) return 0;
    if (first / block_size != range->last / block_size || !(number = PyLong_FromLongLong(first / block_size))) return 0;
    block = PyDict_GetItemWithError(PyTuple_GetItem(ready, COPY), number);
    Py_DECREF(number);
    if (!block || !PyArg_ParseTuple(block, "OOLLO", &opened, &digest, &file_size, &changed, &guards)) return 0;
    if (all_hold(guards, at) && (block = PyDict_GetItemWithError(opened, digest))) fd = PyObject_GetAttr(block, names[FD]);
    range->file = fd ? (int)PyLong_AsLong(fd) : -1;
    Py_XDECREF(fd);
    if (range->file < 0 || fstat(range->file, &status) || !status.st_nlink || status.st_size != file_size) return 0;
    if (status.st_mtim.tv_sec * 1000000000LL + status.st_mtim.tv_nsec != changed) return 0;
    off_t begin = range->offset = first % block_size, last = begin + range->last - first, page = getpagesize();
    struct iovec end = {(char[1]){0}, 1};
    span[0] = begin, span[1] = last + 1 - begin;
    return !syscall(CACHESTAT, range->file, span, pages, 0) && (off_t)pages[0] > last / page - begin / page &&
           preadv2(range->file, &end, 1, last, RWF_NOWAIT) == 1;
}

/* Keep the last lines of the heads of a second's answers; 0: an error is set. */
static int date_answers(State *self, PyObject *held, time_t second) {
    if (second == self->second && HELD(DATED) != Py_None) return 1;
    PyObject *lines = PyObject_CallFunction(HELD(LINES), "L", (long long)second);
    if (!lines) return 0;
    PyList_SetItem(held, DATED, lines);
    self->second = second;
    return PyBytes_Check(lines);
}

#define PART "content-length: %lld\r\ncontent-range: bytes %lld-%lld/%lld\r\nx-amz-request-id: %016llX\r\n"

/* Send a body, or a part of a file, and note the answer; -1, with an error: bytes were sent, but what follows failed. Of a file
 * that the socket does not take at once, READS sends the rest, and notes it. */
static int send_it(PyObject *held, PyObject *request, PyObject *ready, PyObject *body, const Range *range, int out,
                   unsigned long long serial, double now, double at) {
    char own[160];
    long long first = range->first, count = range->last - first + 1, size = PyLong_AsLongLong(PyTuple_GetItem(ready, SIZE));
    int length = range->text ? PyOS_snprintf(own, sizeof own, PART, count, first, range->last, size, serial)
                             : PyOS_snprintf(own, sizeof own, "%016llX\r\n", serial);
    PyObject *head = PyTuple_GetItem(ready, HEAD), *lines = HELD(DATED), *done;
    struct iovec parts[] = {{PyBytes_AsString(head), PyBytes_Size(head)},
                            {own, length},
                            {PyBytes_AsString(lines), PyBytes_Size(lines)},
                            {body ? PyBytes_AsString(body) : NULL, body ? count : 0}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 4};
    ssize_t heads = parts[0].iov_len + parts[1].iov_len + parts[2].iov_len;
    ssize_t sent = sendmsg(out, &message, MSG_DONTWAIT | MSG_NOSIGNAL | (body ? 0 : MSG_MORE));
    off_t next = range->offset;
    if (!body && sent == heads && sendfile(out, range->file, &next, count) > 0) sent += next - range->offset;
    if (sent != heads + count) {
        Py_ssize_t taken = sent >= 0 ? sent : errno == EAGAIN || errno == EINTR ? 0 : -1;
        done = body ? PyObject_CallMethod(HELD(CHANNEL), "keep", "(Oy#OO)n", head, own, (Py_ssize_t)length, lines, body, taken)
                    : PyObject_CallMethod(HELD(READS), "go_on", "OnKdd", request, taken, serial, now, at);
        Py_XDECREF(done);
        if (!done || !body) return done ? 1 : -1;
    }
    double seconds = seconds_of(CLOCK_MONOTONIC, NULL) - at;
    done = Py_BuildValue("(OOddLL)", PyTuple_GetItem(ready, SENT), HELD(READS), now, seconds, first, first + count);
    int noted = done ? PyList_Append(HELD(ANSWERED), done) : -1;
    Py_XDECREF(done);
    if (noted < 0 || PyList_Size(HELD(ANSWERED)) < MANY) return noted < 0 ? -1 : 1;
    done = PyObject_CallFunctionObjArgs(HELD(DRAIN), NULL);
    Py_XDECREF(done);
    return done ? 1 : -1;
}

/* Whether a head was answered. 0: nothing has happened, though an error may be set; see send_it for -1. */
static int answered(State *self, PyObject *held, PyObject *request) {
    char copy[LONGEST];
    const char *head = PyBytes_AsString(request);
    Py_ssize_t size = PyBytes_Size(request);
    Range range = {0};
    if (self->ranged >= 0) size = take_range(self, head, size, copy, &range), head = copy;
    Py_ssize_t end = size ? match(self, PyBytes_AsString(HELD(SHAPE)), head, size) : 0;
    time_t second;
    int done = 0;
    PyObject *body = NULL, *serial = NULL;
    if (!end) return 0;
    double at = seconds_of(CLOCK_MONOTONIC, NULL), now = seconds_of(CLOCK_REALTIME, &second);
    PyObject *guards = PyObject_GetAttr(HELD(GUARDED), names[GUARDS_NAME]), *copied;
    PyObject *path = guards && all_hold(guards, at) ? PyBytes_FromStringAndSize(head + 4, end - 4) : NULL;
    PyObject *ready = path ? PyDict_GetItemWithError(HELD(OBJECTS), path) : NULL;
    Py_XDECREF(guards);
    Py_XDECREF(path);
    if (!ready || PyTuple_Size(ready) != READY) return 0;
    Py_INCREF(ready);
    const char *date = head + end + self->slots[self->date][0];
    PyObject *descriptor = PyObject_GetAttr(HELD(CHANNEL), names[DESCRIPTOR]);
    int out = descriptor ? (int)PyLong_AsLong(descriptor) : -1;
    Py_XDECREF(descriptor);
    if (out < 0 || !(PyFloat_AsDouble(PyTuple_GetItem(ready, SINCE)) <= now)) goto end;
    if (!(now < PyFloat_AsDouble(PyTuple_GetItem(ready, BEFORE))) || !all_hold(PyTuple_GetItem(ready, GUARDS), at)) goto end;
    if (!range.text) range.last = PyLong_AsLongLong(PyTuple_GetItem(ready, SIZE)) - 1;
    if (!PyDict_Check(copied = PyTuple_GetItem(ready, COPY))) {
        body = PyObject_GetAttr(copied, names[BODY]);
        if (!body || !PyBytes_Check(body) || PyBytes_Size(body) != range.last + 1) goto end;
    }
    if ((HELD(PIECES) == Py_None || memcmp(date, self->signed_date, DATE)) && !begin(self, held, date)) goto end;
    if (!(self->since <= now && now < self->until) || !verified(self, HELD(PIECES), head, end, &range)) goto end;
    if (!date_answers(self, held, second) || (!body && !find_file(ready, &range, at))) goto end;
    serial = PyIter_Next(HELD(IDS));
    if (serial && !PyErr_Occurred())
        done = send_it(held, request, ready, body, &range, out, PyLong_AsUnsignedLongLongMask(serial), now, at);
end:
    Py_XDECREF(serial);
    Py_XDECREF(body);
    Py_DECREF(ready);
    return done;
}

/* answer(held, state, head): answer bytes that are one head of this shape; returns whether they were. */
static PyObject *answer(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    if (count != 3 || !PyList_Check(given[0]) || PyList_Size(given[0]) != ALL || !PyByteArray_Check(given[1]) ||
        PyByteArray_Size(given[1]) != sizeof(State))
        return PyErr_SetString(PyExc_TypeError, "not the heads of a connection"), NULL;
    PyObject *held = given[0], *head = given[2];
    State *self = (State *)PyByteArray_AsString(given[1]);
    int done = PyBytes_Check(head) ? answered(self, held, head) : 0;
    if (done) return done < 0 ? NULL : Py_NewRef(Py_True);
    PyErr_Clear(); /* the Python code meets the same error, and answers */
    return PyObject_CallFunctionObjArgs(HELD(GENERAL), head, NULL);
}

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

static PyMethodDef methods[] = {{"answer", (PyCFunction)(void (*)(void))answer, METH_FASTCALL, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_repeated", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__repeated(void) {
    const char *bytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    if (!find_libcrypto()) return PyErr_SetString(PyExc_ImportError, "no libcrypto with SHA-256"), NULL;
    while (*bytes) plain[(unsigned char)*bytes++] = 1;
    names[GUARDS_NAME] = PyUnicode_InternFromString("guards");
    names[BODY] = PyUnicode_InternFromString("body");
    names[DESCRIPTOR] = PyUnicode_InternFromString("descriptor");
    names[FD] = PyUnicode_InternFromString("fd");
    PyObject *module = PyModule_Create(&definition);
    if (!module || PyErr_Occurred() || PyModule_AddIntConstant(module, "STATE", sizeof(State)) < 0) return NULL;
    for (int kind = IS; kind <= UNTIL; kind++)
        if (PyModule_AddIntConstant(module, KINDS[kind], kind) < 0) return NULL;
    return module;
}
