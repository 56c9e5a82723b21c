package spill

import (
	"bufio"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"bowstring/internal/rounds"
	"bowstring/schema"
)

// The test binary runs itself as another process, to be killed.
const (
	childDir  = "BOWSTRING_TEST_SPILL"
	childSeed = "BOWSTRING_TEST_SEED"
)

// childBlobs is how many different blobs a child stores.
const childBlobs = 400

func childOptions(dir string) Options {
	return Options{Dir: dir, Bytes: MinBytes + 4<<20, KeepFree: 1, Logger: slog.New(slog.DiscardHandler)}
}

// child stores, reads and evicts until it is killed, and prints each step.
func child() error {
	c, err := Open(childOptions(os.Getenv(childDir)))
	if err != nil {
		return err
	}
	fmt.Println("open")
	seed, err := strconv.ParseUint(os.Getenv(childSeed), 10, 64)
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(seed, 1))
	var held []schema.Blob
	for {
		i := r.IntN(childBlobs)
		data, ref := content(i)
		switch k := r.IntN(20); {
		case k < 12:
			c.Put(ref, Place{Dataset: c.Dataset("d"), Position: int64(i)}, 1e6, data)
		case k < 19:
			if b, ok := c.Get(ref, Place{}); ok {
				if string(b.Bytes()) != string(data) {
					return fmt.Errorf("blob %d has wrong bytes", i)
				}
				held = append(held, b)
			}
		default:
			for i := range held {
				held[i].Release()
			}
			held = held[:0]
		}
		fmt.Println(i)
	}
}

var killsFlag = flag.Int("kills", 0, "how often TestKill kills a process; 0 for 60, in make nightly 200")

// killsPerCache is how often a cache is left by a killed process before the next begins with an empty directory.
const killsPerCache = 50

// TestKill kills a process at random moments, counted in its steps, and opens what it leaves: no blob may be wrong,
// the accounting agrees with the files, and the next process can continue.
func TestKill(t *testing.T) {
	seed := testRand(t).Uint64()
	kills := *killsFlag
	if kills == 0 {
		kills = rounds.Count(60, 200)
	}
	if testing.Short() || underRace { // the detector finds nothing in processes that are killed
		kills = 12
	}
	found := 0
	for first := 0; first < kills; first += killsPerCache {
		t.Run(fmt.Sprint("from_", first), func(t *testing.T) { // its directory goes with it
			dir := filepath.Join(t.TempDir(), "spill")
			for k := first; k < min(first+killsPerCache, kills); k++ {
				found += killOnce(t, dir, rand.New(rand.NewPCG(seed, uint64(k))))
			}
			t.Logf("%d blobs were found after kills so far", found)
		})
		if t.Failed() {
			return
		}
	}
	if found == 0 {
		t.Error("nothing was ever found")
	}
}

func killOnce(t *testing.T, dir string, r *rand.Rand) (found int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childSeed+"="+strconv.FormatUint(r.Uint64(), 10))
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	for left := 1 + r.IntN(150); left > 0; left-- {
		if !lines.Scan() {
			_ = cmd.Wait() // it failed, and has said why
			t.Fatal("the child ended early")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() {
	}
	if err := cmd.Wait(); cmd.ProcessState.Exited() {
		t.Fatalf("the child ended before it was killed: %v", err) // it has said why
	}

	c, err := Open(childOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer closeCache(t, c)
	requireExact(t, c)
	if n := usage(t, dir); n > c.opts.Bytes {
		t.Fatalf("the cache has %d bytes of %d", n, c.opts.Bytes)
	}
	if r.IntN(4) == 0 { // reading all takes time
		for i := range childBlobs {
			if requireRight(t, c, i) {
				found++
			}
		}
		if st := c.Stats(); st.Damaged > 0 {
			t.Logf("%d blobs were damaged", st.Damaged)
		}
	}
	return found
}
