package schema

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
)

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
