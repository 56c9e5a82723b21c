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

// The kinds of failure a caller can act upon. Every error that crosses a
// package border wraps at most one of them; package flight maps each to one
// gRPC code, in one table.
var (
	// ErrInvalid: the request itself is wrong; repeating it cannot help.
	ErrInvalid = errors.New("invalid")
	// ErrNotFound: a dataset, snapshot, split, selection, sample or blob does not exist.
	ErrNotFound = errors.New("not found")
	// ErrExists: what was to be created is there already.
	ErrExists = errors.New("already exists")
	// ErrDenied: whoever asks may not do it, to something that he may know of.
	ErrDenied = errors.New("permission denied")
	// ErrLimit: a configured limit was reached; the message names it.
	ErrLimit = errors.New("limit reached")
	// ErrConflict: another writer committed first; taking a fresh look and trying again can help.
	ErrConflict = errors.New("conflict")
	// ErrUnavailable: a resource is busy, draining or out of reach just now.
	ErrUnavailable = errors.New("unavailable")
	// ErrDataLoss: stored bytes do not match their checksum, or are gone though the manifest names them.
	ErrDataLoss = errors.New("data loss")
	// ErrNotSupported: the data may well be what it says, and is of a kind that this server does not read.
	ErrNotSupported = errors.New("not supported")
	// ErrUnauthenticated: nobody knows who asks. The message never says what is wrong with the credentials.
	ErrUnauthenticated = errors.New("unauthenticated")
)

// FieldError is ErrInvalid with the place: which field of a request, what it
// held, and what it takes.
type FieldError struct {
	Field string // path in the request, such as "shuffle.seed"
	Got   string // the offending value as the client wrote it, abridged
	Want  string // what is allowed
}

// Error says which field is wrong, what it got and what it takes.
func (e *FieldError) Error() string {
	if e.Got == "" {
		return fmt.Sprintf("%s: want %s", e.Field, e.Want)
	}
	return fmt.Sprintf("%s: got %s, want %s", e.Field, e.Got, e.Want)
}

// Unwrap makes every FieldError an ErrInvalid.
func (e *FieldError) Unwrap() error { return ErrInvalid }

// LimitError is an ErrLimit with a name that programs can tell, and with the time
// after which trying again may help.
type LimitError struct {
	Limit   string        // its name, such as "tenant.streams"
	Message string        // what was asked for, and what there may be
	After   time.Duration // when to try again; 0: that does not help by itself
}

// Error ends in when to try again, for people. Programs read the google.rpc.RetryInfo of the status.
func (e *LimitError) Error() string {
	if e.After <= 0 {
		return fmt.Sprintf("%s: %s: %s", ErrLimit, e.Limit, e.Message)
	}
	return fmt.Sprintf("%s: %s: %s (try again in %.3f s)", ErrLimit, e.Limit, e.Message, e.After.Seconds())
}

// Unwrap makes every LimitError an ErrLimit.
func (e *LimitError) Unwrap() error { return ErrLimit }

// Jittered is d, up to a quarter more or less by chance: those who were refused
// together do not come back together.
func Jittered(d time.Duration) time.Duration {
	return d*3/4 + rand.N(max(d/2, 1))
}

// DefectError is a panic that was recovered. It is a defect of the server, and of no request or data, so it wraps none
// of the kinds of failure. Its message has an id and not the text of the panic, which may hold data of others or
// addresses in memory: the message goes to clients. The log has the id, the text and the stack.
type DefectError struct {
	// ID is in the message and in the log.
	ID string

	text, stack string
	logging     sync.Once
}

// Recovered makes an error of what recover has returned. It is called by the deferred function that recovers, as it
// takes the stack.
func Recovered(p any) *DefectError {
	return &DefectError{ID: fmt.Sprintf("%016x", rand.Uint64()), text: fmt.Sprint(p), stack: string(debug.Stack())}
}

// Error has no detail of the panic, because it is sent to clients. The log has it, under the same id.
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
// read, of a bad sector or beyond the end of a file that was cut short, would end the
// process (SIGBUS); here it is an ErrDataLoss that names the file. It costs some
// nanoseconds, holds for the calling goroutine alone, and may be nested. What else
// panics goes on.
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

// faultError makes an error of a panic if that is a fault in a mapped file.
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

// mappedFile says which file lies at an address, and where in it the address is. The kernel
// knows, so that nobody has to keep account of mappings for what hardly ever happens.
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

// touch reads a byte of each page of b. Were it inlined where nobody uses the sum, no byte would be read: the compiler
// leaves loads out that lead to nothing.
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

// touch reads a byte of each page that the vector's buffers lie in.
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

// longestShown is how long a name may be that a message has without quotes, in bytes.
const longestShown = 40

// Shown is a name as messages have it. A plain one, of letters, digits and . _ - /, is as it is. Any other one is in
// quotes, with escapes, and abridged: names come from data and from other callers, and what such a name says is not to
// be taken for what the server says.
func Shown(name string) string {
	if name == "" || len(name) > longestShown || strings.ContainsFunc(name, odd) {
		return Quote(name)
	}
	return name
}

// odd reports whether a character is none of a plain name.
func odd(c rune) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
	case c == '.', c == '_', c == '-', c == '/':
	default:
		return true
	}
	return false
}

// ShownList lists names as messages have them.
func ShownList(names []string) string {
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = Shown(name)
	}
	return strings.Join(list, ", ")
}

// ShownType is a type as messages have it: in quotes where it has fields with odd names.
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

// longestType is how much of a type a message has, in bytes.
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
