package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bowstring/schema"
)

// Numbers of the kernel for userfaultfd(2), by which a process decides itself when a page that it touches is there: a
// page of a file on a disk that hangs.
const (
	uffdAPI      = 0xc018aa3f
	uffdRegister = 0xc020aa00
	uffdCopy     = 0xc028aa03
	uffdMissing  = 1
)

// hangingPages maps bytes whose pages are not there, and of which ready reads the page that was touched first, fill brings
// all. It is an error where the kernel does not let this user do so.
func hangingPages(n int) (mapped []byte, touched func() error, fill func(b []byte) error, err error) {
	fd, _, errno := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|unix.O_NONBLOCK, 0, 0)
	if errno != 0 {
		return nil, nil, nil, errno
	}
	ask := func(what uintptr, arg unsafe.Pointer) error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, what, uintptr(arg)); errno != 0 {
			return errno
		}
		return nil
	}
	if mapped, err = unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return nil, nil, nil, err
	}
	api := [3]uint64{0xaa}
	region := [4]uint64{uint64(uintptr(unsafe.Pointer(&mapped[0]))), uint64(n), uffdMissing}
	if err := errors.Join(ask(uffdAPI, unsafe.Pointer(&api)), ask(uffdRegister, unsafe.Pointer(&region))); err != nil {
		return nil, nil, nil, err
	}
	events := os.NewFile(fd, "userfaultfd") // waited for by the runtime's poller
	touched = func() error {
		var message [32]byte
		_, err := events.Read(message[:])
		return err
	}
	fill = func(b []byte) error {
		move := [5]uint64{region[0], uint64(uintptr(unsafe.Pointer(&b[0]))), uint64(n)}
		err := ask(uffdCopy, unsafe.Pointer(&move))
		runtime.KeepAlive(b)
		runtime.KeepAlive(events)
		return err
	}
	return mapped, touched, fill, nil
}

// While a page that is sent has to be waited for, the rest of the process goes on, on one processor, and its garbage is
// collected. In a process of its own, as one that hangs cannot say so.
func TestPagesThatHangHoldUpNoOther(t *testing.T) {
	const child = "BOWSTRING_TEST_HANGING"
	if how := os.Getenv(child); how != "" {
		sendHanging(t, how)
		return
	}
	switch _, _, _, err := hangingPages(os.Getpagesize()); {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSYS):
		t.Skipf("userfaultfd of kernel faults takes CAP_SYS_PTRACE: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	for _, how := range []string{"writev", "populate"} {
		t.Run(how, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestPagesThatHangHoldUpNoOther$")
			cmd.Env = append(os.Environ(), child+"="+how, "GOMAXPROCS=1")
			cmd.WaitDelay = time.Second
			stop := time.AfterFunc(3*time.Minute, func() { _ = cmd.Process.Kill() })
			defer stop.Stop()
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// sendHanging sends pages that come only after somebody else had a turn.
func sendHanging(t *testing.T, how string) {
	n := 4 * os.Getpagesize()
	mapped, touched, fill, err := hangingPages(n)
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte("page"), n/4)
	near, far := tcpPair(t)
	brought := make(chan error, 1)
	go func() {
		err := touched()
		runtime.GC() // stops all that run Go code, or what the scheduler takes for such
		brought <- errors.Join(err, fill(want))
	}()
	resident := unknown
	if how == "populate" {
		bringBack([][]byte{mapped})
		resident = time.Time{}
	}
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(far)
		got <- b
	}()
	if err := newVectorWriter(near).write(near, net.Buffers{mapped}, resident); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-brought, near.CloseWrite()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(<-got, want) {
		t.Error("other bytes arrived")
	}
}

// A system call that the scheduler does not see is cheaper: RawSyscall compared to
// Syscall.
func BenchmarkWritev(b *testing.B) {
	for name, resident := range map[string]time.Time{"known": {}, "unknown": unknown} {
		b.Run(name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			far, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			near, err := l.Accept()
			if err != nil {
				b.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{far}, make([]byte, 1<<20))
			}()
			pieces := make([][]byte, 16)
			for i := range pieces {
				pieces[i] = make([]byte, writevBytes/len(pieces))
			}
			w := newVectorWriter(near)
			b.SetBytes(writevBytes)
			var before, after syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			for b.Loop() {
				if err := w.write(near, append(net.Buffers(nil), pieces...), resident); err != nil {
					b.Fatal(err)
				}
			}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			used := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
			_ = near.Close()
			<-done
			_ = far.Close()
		})
	}
}

// mappedOwner is an owner that knows the extents of its blobs, and whether they were
// compared.
type mappedOwner struct{ unchecked bool }

func (mappedOwner) Unpin() {}

func (mappedOwner) Extent(data []byte) (schema.Extent, bool) {
	return schema.Extent{Length: int64(len(data))}, true
}

func (o mappedOwner) Unchecked() bool { return o.unchecked }

// Pages are known to be there of blobs that are no file's, and for a while of those that were just compared.
func TestFreshUntil(t *testing.T) {
	heap := schema.NewBlob([]byte("heap"), nil)
	compared := schema.NewBlob([]byte("now"), mappedOwner{unchecked: true})
	before := schema.NewBlob([]byte("before"), mappedOwner{})
	ready := time.Now()
	for _, c := range []struct {
		blobs [][]schema.Blob
		want  time.Time
	}{
		{nil, time.Time{}},
		{[][]schema.Blob{{heap}, {heap, heap}}, time.Time{}},
		{[][]schema.Blob{{heap}, {heap, compared}}, ready.Add(freshFor)},
		{[][]schema.Blob{{compared, before}, {heap}}, unknown},
	} {
		if got := FreshUntil(&schema.Batch{Blobs: c.blobs}, ready); !got.Equal(c.want) {
			t.Errorf("%d columns are in memory until %v, want %v", len(c.blobs), got, c.want)
		}
	}
	always, late := time.Time{}, ready.Add(time.Hour)
	for _, c := range [][3]time.Time{{always, always, always}, {always, late, late}, {late, always, late},
		{ready, late, ready}, {late, unknown, unknown}} {
		if got := sooner(c[0], c[1]); !got.Equal(c[2]) {
			t.Errorf("of %v and %v the sooner is %v", c[0], c[1], got)
		}
	}
	if isStale(always) || isStale(late) || !isStale(unknown) {
		t.Error("what is stale is not, or the other way round")
	}
}
