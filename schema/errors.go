package schema

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
)

// The kinds of failure that a caller can act upon. Every error that crosses a package
// border wraps at most one of them. Package flight maps each to one gRPC code, in one
// table.
var (
	// ErrInvalid: the request itself is wrong; repeating it cannot help.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: a dataset, snapshot, split, selection, sample or blob does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists: the thing to be created exists already.
	ErrExists = errors.New("already exists")
	// ErrDenied: the caller may not do this to something that it may know of. Data that
	// it may not know of is ErrNotFound.
	ErrDenied = errors.New("permission denied")
	// ErrLimit: a configured limit was reached; the message names it.
	ErrLimit = errors.New("limit reached")
	// ErrConflict: another writer committed first; reading the new state and trying again
	// can help.
	ErrConflict = errors.New("conflict")
	// ErrUnavailable: a resource is busy, draining or unreachable at the moment.
	ErrUnavailable = errors.New("unavailable")
	// ErrDataLoss: stored bytes do not match their checksum, or are gone though the manifest names them.
	ErrDataLoss = errors.New("data loss")
	// ErrNotSupported: the data may be correct, but this server cannot read its kind.
	ErrNotSupported = errors.New("not supported")
	// ErrUnauthenticated: the caller is unknown. The message never says what is wrong
	// with the credentials.
	ErrUnauthenticated = errors.New("unauthenticated")
)

// FieldError is an ErrInvalid with its place: the field of a request, its value, and what
// is allowed.
type FieldError struct {
	Field string // path in the request, such as "shuffle.seed"
	Got   string // the offending value as the client wrote it, abridged
	Want  string // what is allowed
}

// Error names the field, its value and what is allowed.
func (e *FieldError) Error() string {
	if e.Got == "" {
		return fmt.Sprintf("%s: want %s", e.Field, e.Want)
	}
	return fmt.Sprintf("%s: got %s, want %s", e.Field, e.Got, e.Want)
}

// Unwrap makes every FieldError an ErrInvalid.
func (e *FieldError) Unwrap() error { return ErrInvalid }

// LimitError is an ErrLimit with a name for programs, and with the time after which
// another attempt may succeed.
type LimitError struct {
	Limit   string        // its name, such as "tenant.streams"
	Message string        // what was asked for, and what there may be
	After   time.Duration // when to try again; 0: waiting does not help
}

// Error ends with the time of the next attempt, for people. Programs read the
// google.rpc.RetryInfo of the status.
func (e *LimitError) Error() string {
	if e.After <= 0 {
		return fmt.Sprintf("%s: %s: %s", ErrLimit, e.Limit, e.Message)
	}
	return fmt.Sprintf("%s: %s: %s (try again in %.3f s)", ErrLimit, e.Limit, e.Message, e.After.Seconds())
}

// Unwrap makes every LimitError an ErrLimit.
func (e *LimitError) Unwrap() error { return ErrLimit }

// Jittered is d, randomly changed by up to a quarter: callers that were refused together
// do not return together.
func Jittered(d time.Duration) time.Duration {
	return d*3/4 + rand.N(max(d/2, 1))
}

// DefectError is a recovered panic. It is a defect of the server, not of a request or of
// data, so it wraps none of the kinds of failure. Its message has an id and not the text
// of the panic, which may contain data of others or memory addresses, because the message
// goes to clients. The log has the id, the text and the stack.
type DefectError struct {
	// ID is in the message and in the log: 16 hexadecimal digits.
	ID string

	text, stack string
	logging     sync.Once
}

// Recovered makes an error of the result of recover. The deferred function that recovers
// must call it itself, because it captures the stack.
func Recovered(p any) *DefectError {
	return &DefectError{ID: fmt.Sprintf("%016x", rand.Uint64()), text: fmt.Sprint(p), stack: string(debug.Stack())}
}

// Error has no detail of the panic, because clients receive it. The log has the details
// under the same id.
func (d *DefectError) Error() string {
	return "a defect of the server; its log says more under the id " + d.ID
}

// Log logs the panic with its stack, once for each error. It returns d.
func (d *DefectError) Log(ctx context.Context, logger *slog.Logger, what string, attrs ...slog.Attr) *DefectError {
	d.logging.Do(func() {
		attrs = append(attrs, slog.String("id", d.ID), slog.String("panic", d.text), slog.String("stack", d.stack))
		logger.LogAttrs(ctx, slog.LevelError, what, attrs...) //nolint:sloglint // a constant of the caller
	})
	return d
}

// Guard calls read, which reads memory that files are mapped to. A page that cannot be
// read, because of a bad sector or beyond the end of a truncated file, would end the
// process (SIGBUS). Guard turns the fault into an ErrDataLoss that names the file. It
// costs some nanoseconds, covers only the calling goroutine, and may be nested. Other
// panics continue.
func Guard(read func() error) (err error) {
	was := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(was)
		if p := recover(); p != nil {
			if err = faultError(p); err == nil {
				panic(p)
			}
		}
	}()
	return read()
}

// faultError makes an error of a panic if that is a fault in a mapped file, else nil.
func faultError(p any) error {
	fault, ok := p.(interface {
		runtime.Error
		Addr() uintptr
	})
	if !ok {
		return nil
	}
	name, at, ok := mappedFile(uint64(fault.Addr()))
	if !ok {
		return nil
	}
	return fmt.Errorf("%w: %s cannot be read at offset %d: its disk fails, or it was cut short", ErrDataLoss, name, at)
}

// mappedFile finds the file that is mapped at an address, and the offset in it. It asks
// the kernel, because accounting for every mapping would cost more than this rare case is
// worth.
func mappedFile(addr uint64) (name string, offset uint64, ok bool) {
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return "", 0, false
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// from-to permissions offset device inode path
		fields := strings.Fields(lines.Text())
		if len(fields) < 6 || !strings.HasPrefix(fields[5], "/") {
			continue
		}
		from, to, _ := strings.Cut(fields[0], "-")
		begin, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		at, err3 := strconv.ParseUint(fields[2], 16, 64)
		if err1 == nil && err2 == nil && err3 == nil && begin <= addr && addr < end {
			return strings.Join(fields[5:], " "), at + addr - begin, true
		}
	}
	return "", 0, false
}

// touch reads a byte of each page of b. It must not be inlined: where a caller ignores
// the sum, the compiler would remove the loads.
//
//go:noinline
func touch(b []byte) (sum byte) {
	for at := 0; at < len(b); at += 4096 {
		sum += b[at]
	}
	if len(b) > 0 {
		sum += b[len(b)-1]
	}
	return sum
}

// touch reads a byte of each page of the vector's buffers.
func (v *Vector) touch() (sum byte) {
	for i := range v.Buffers {
		for _, p := range v.Buffers[i].Pieces {
			sum += touch(p)
		}
	}
	for i := range v.Children {
		sum += v.Children[i].touch()
	}
	return sum
}

// longestShown is the length in bytes up to which a message has a name without quotes.
const longestShown = 40

// Shown is a name in the form of messages. A plain one, of letters, digits and . _ - /,
// is unchanged. Any other is quoted, escaped and abridged: names come from data and other
// callers, and must not look like a part of the server's message.
func Shown(name string) string {
	if name == "" || len(name) > longestShown || strings.ContainsFunc(name, odd) {
		return Quote(name)
	}
	return name
}

// odd reports whether a character does not belong to plain names.
func odd(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
	case c == '.', c == '_', c == '-', c == '/':
	default:
		return true
	}
	return false
}

// ShownList lists names in the form of messages.
func ShownList(names []string) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = Shown(name)
	}
	return strings.Join(list, ", ")
}

// ShownType is a type in the form of messages: quoted if it has fields with odd names.
func ShownType(dt arrow.DataType) string {
	if dt == nil {
		return "nothing"
	}
	text := dt.String()
	inType := func(c rune) bool { return odd(c) && !strings.ContainsRune("<>[]=,: +()", c) }
	nested, isNested := dt.(arrow.NestedType)
	if len(text) <= longestType && !strings.ContainsFunc(text, inType) && (!isNested || plainFields(nested)) {
		return text
	}
	if len(text) > longestType {
		text = clip(text, longestType) + "…"
	}
	return strconv.Quote(text)
}

// longestType is how many bytes of a type a message shows.
const longestType = 200

// plainFields reports whether all names within a type are plain.
func plainFields(dt arrow.NestedType) bool {
	for _, f := range dt.Fields() {
		if Shown(f.Name) != f.Name && f.Name != "" {
			return false
		}
		if inner, ok := f.Type.(arrow.NestedType); ok && !plainFields(inner) {
			return false
		}
	}
	return true
}
