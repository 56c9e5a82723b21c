package metamorphic

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"bowstring/internal/leaktest"
)

var (
	seeds  = flag.Int("seeds", 1000, "how many seeds to run")
	from   = flag.Uint64("from", 1, "the first of them; 0 for any")
	seed   = flag.Uint64("seed", 0, "the seed to run, and to say what it did")
	opFile = flag.String("ops", "", "a file of operations to run")
	repeat = flag.Int("repeat", 1, "how often to run the operations, as goroutines have turns of their own")
	child  = flag.Uint64("child", 0, "for the test itself: run the seeds from this one on in this process")
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	// shortSeeds is how many seeds are run under -short.
	shortSeeds = 100
	// children is how many processes run them.
	children = 2
	// tries is how often a list of operations is run to find that it does not fail,
	// and reductions how many shorter lists are tried.
	tries      = 20
	reductions = 200
)

// The seeds are run by processes of their own, since what is wrong with an engine
// may end its process: a page that is gone, or goroutines that wait for each other.
func TestMetamorphic(t *testing.T) {
	switch {
	case *opFile != "":
		text, err := os.ReadFile(*opFile)
		if err != nil {
			t.Fatal(err)
		}
		ops, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		for range *repeat {
			replay(t, ops)
		}
	case *seed != 0:
		for range *repeat {
			replay(t, generate(*seed))
		}
	case *child != 0:
		for s := *child; s < *child+uint64(*seeds); s++ {
			fmt.Println(seedLine, s)
			if _, err := run(t, generate(s)); err != nil {
				t.Fatalf("seed %d: %v", s, err)
			}
		}
	default:
		drive(t)
	}
}

// replay runs operations, and says what they did.
func replay(t *testing.T, ops []op) {
	t.Helper()
	trace, err := run(t, ops)
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, format(ops), trace)
	}
	if testing.Verbose() && *repeat == 1 {
		t.Logf("%s\n%s", format(ops), trace)
	}
}

const seedLine = "seed:"

// drive has the seeds run by other processes.
func drive(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, shortSeeds)
	}
	first := *from // the same each time, so that a failure belongs to the change that it came with
	if first == 0 {
		first = rand.Uint64N(1<<48) + 1
	}
	t.Logf("seeds %d to %d", first, first+uint64(n)-1)
	var all sync.WaitGroup
	for c := range children {
		all.Go(func() {
			from, to := first+uint64(n*c/children), first+uint64(n*(c+1)/children)
			last, output, err := process(fmt.Sprintf("-child=%d", from), fmt.Sprintf("-seeds=%d", to-from))
			if err == nil {
				return
			}
			ops := reduce(t, generate(last))
			t.Errorf("seed %d fails; run it by -args -seed=%d, or these operations by -args -repeat=%d "+
				"-ops=FILE:\n%s\n%s",
				last, last, tries, format(ops), output)
		})
	}
	all.Wait()
}

// process runs this test in a process of its own. It returns the seed that was
// run last, and the end of what it wrote.
func process(args ...string) (last uint64, output string, err error) {
	cmd := exec.Command(os.Args[0], append([]string{"-test.run=^TestMetamorphic$", "-test.timeout=0"}, args...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, "", err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return 0, "", err
	}
	var text bytes.Buffer
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		if rest, ok := strings.CutPrefix(line, seedLine); ok {
			_, _ = fmt.Sscan(rest, &last)
		} else if text.Len() < 1<<14 {
			text.WriteString(line)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return last, text.String(), err
		}
	}
	return last, text.String(), cmd.Wait()
}

// reduce drops operations as long as those that are left fail.
func reduce(t *testing.T, ops []op) []op {
	file := filepath.Join(t.TempDir(), "ops")
	fails := func(ops []op) bool {
		if err := os.WriteFile(file, []byte(format(ops)), 0o600); err != nil {
			t.Error(err)
			return false
		}
		_, _, err := process("-ops="+file, fmt.Sprintf("-repeat=%d", tries))
		return err != nil
	}
	left := reductions
	for size := len(ops) / 2; size > 0; size /= 2 {
		for at := 1; at < len(ops) && left > 0; { // the first makes the engine
			shorter := slices.Concat(ops[:at], ops[min(len(ops), at+size):])
			if left--; fails(shorter) {
				ops = shorter
			} else {
				at += size
			}
		}
	}
	return ops
}
