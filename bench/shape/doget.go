package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"
	"github.com/apache/arrow/go/v17/arrow/flight"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// doGet is what one DoGet goes through in the program, counted while it is served by `bowstring serve` with an embedded
// store: a shuffled epoch of samples of 16 KB in batches of 32, after a DoGet that has opened the snapshot. The
// program is compiled from a copy of the tree whose functions say that they are called and whose locks are counted.
type doGet struct {
	Functions int     `json:"functions"`         // that ran, function literals included
	Packages  int     `json:"packages"`          // that these stand in
	Hops      int     `json:"hops"`              // pairs of packages: one called the other
	Calls     int     `json:"calls_between"`     // pairs of functions of two packages: one called the other
	HandOffs  float64 `json:"hand_offs_a_batch"` // goroutines that the program's code woke or started
	Locks     float64 `json:"locks_a_sample"`    // of sync's kinds, in the program's own code
	// Wakers and Lockers are the functions that wake or start most, and that take most locks, a batch.
	Wakers  []share `json:"wakers"`
	Lockers []share `json:"lockers"`
	// Path lists the packages by how far they stand from the handler.
	Path []string `json:"path"`
}

// share is what a function has of something, a batch.
type share struct {
	Function string  `json:"function"`
	Batch    float64 `json:"a_batch"`
}

const (
	hooksPackage    = "bowstring/internal/shapehooks"
	rows, bytesEach = 4096, 16 << 10
	batch           = 32
)

//go:embed hooks.go.txt
var hooks []byte

// get measures a DoGet of a tree.
func get(root string) (*doGet, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "shape-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "bowstring")
	if err := compile(root, dir, program); err != nil {
		return nil, err
	}
	store, ready, socket := filepath.Join(dir, "store"), filepath.Join(dir, "ready"), filepath.Join(dir, "socket")
	server := exec.Command(program, "serve", "--store", store, //nolint:noctx // it is ended below
		"--listen", "127.0.0.1:0", "--ready-file", ready)
	var log bytes.Buffer
	server.Stdout, server.Stderr = &log, &log
	server.Env = append(os.Environ(), "SHAPE_SOCKET="+socket)
	if err := server.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = server.Process.Signal(os.Interrupt)
		_ = server.Wait()
	}()
	var address []byte
	for range 600 {
		if address, err = os.ReadFile(ready); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("the server did not start: %w:\n%s", err, log.Bytes())
	}
	found, err := watched(strings.TrimPrefix(strings.TrimSpace(string(address)), "grpc://"), socket)
	if err != nil {
		return nil, fmt.Errorf("%w:\n%s", err, log.Bytes())
	}
	return found, nil
}

// compile builds the program with hooks in its functions.
func compile(root, dir, program string) error {
	list := exec.Command("go", "list", "-deps", "-f", //nolint:noctx // it ends by itself
		`{{if .Module}}{{if .Module.Main}}{{range .GoFiles}}{{$.Dir}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`, "./cmd/bowstring")
	list.Dir, list.Stderr = root, os.Stderr
	files, err := list.Output()
	if err != nil {
		return err
	}
	replaced := map[string]string{}
	put := func(path string, text []byte) error {
		copied := filepath.Join(dir, fmt.Sprint(len(replaced), ".go"))
		replaced[path] = copied
		return os.WriteFile(copied, text, 0o600)
	}
	if err := put(filepath.Join(root, strings.TrimPrefix(hooksPackage, "bowstring/"), "hooks.go"), hooks); err != nil {
		return err
	}
	for _, path := range strings.Fields(string(files)) {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if text, err = hooked(text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := put(path, text); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return err
	}
	overlaid := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlaid, overlay, 0o600); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-overlay", overlaid, "-o", program, "./cmd/bowstring") //nolint:noctx // as above
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("the program with hooks: %w:\n%s", err, out)
	}
	return nil
}

// hooked is a file whose functions say that they are called, and whose locks are counted.
func hooked(text []byte) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", text, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		return nil, err
	}
	inserts := map[int]string{}
	at := func(p token.Pos) int { return fset.Position(p).Offset }
	statements := func(list []ast.Stmt) {
		for _, s := range list {
			x, ok := s.(*ast.ExprStmt)
			if !ok {
				continue
			}
			c, ok := x.X.(*ast.CallExpr)
			if !ok || len(c.Args) > 0 {
				continue
			}
			if f, ok := c.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "Lock" || f.Sel.Name == "RLock") {
				inserts[at(s.Pos())] = "shapehooks.Lock(); "
			}
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Body != nil && n.Name.Name != "init" {
				inserts[at(n.Body.Lbrace)+1] = " shapehooks.Call(); "
			}
		case *ast.FuncLit:
			inserts[at(n.Body.Lbrace)+1] = " shapehooks.Call(); "
		case *ast.BlockStmt:
			statements(n.List)
		case *ast.CaseClause:
			statements(n.Body)
		case *ast.CommClause:
			statements(n.Body)
		}
		return true
	})
	if len(inserts) == 0 {
		return text, nil
	}
	inserts[at(file.Name.End())] = fmt.Sprintf("; import shapehooks %q", hooksPackage)
	var out []byte
	last := 0
	for _, offset := range sorted(inserts) {
		out = append(append(out, text[last:offset]...), inserts[offset]...)
		last = offset
	}
	return append(out, text[last:]...), nil
}

func sorted(m map[int]string) []int {
	var all []int
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// watched puts a dataset and reads it four times: to open it, and to count locks, calls and hand-offs.
func watched(address, socket string) (*doGet, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	client, err := flight.NewClientWithMiddleware(address, nil, nil,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if err := put(ctx, client); err != nil {
		return nil, fmt.Errorf("put: %w", err)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	answers := json.NewDecoder(bufio.NewReader(conn))
	ask := func(what string, answer any) error {
		if _, err := fmt.Fprintln(conn, what); err != nil {
			return err
		}
		return answers.Decode(answer)
	}
	var none any
	locks := map[string]int{}
	var stacks [][]string
	for _, pass := range []struct {
		begin, end string
		answer     any
	}{{"", "", nil}, {"locks", "locked", &locks}, {"calls", "called", &stacks}, {"trace", "traced", &none}} {
		if pass.begin != "" {
			if err := ask(pass.begin, &none); err != nil {
				return nil, err
			}
		}
		if err := read(ctx, client); err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		if pass.end != "" {
			if err := ask(pass.end, pass.answer); err != nil {
				return nil, err
			}
		}
	}
	found := followed(stacks)
	woken, err := wakes(ctx, socket+".trace")
	var all float64
	found.Lockers, all = shares(locks)
	found.Locks = all / batch
	found.Wakers, found.HandOffs = shares(woken)
	return found, err
}

// shares are the largest eight of counts of an epoch, and the sum of all, a batch.
func shares(counts map[string]int) (list []share, all float64) {
	for name, n := range counts {
		part := float64(n) / (rows / batch)
		list = append(list, share{name, part})
		all += part
	}
	slices.SortFunc(list, func(a, b share) int {
		return cmp.Or(cmp.Compare(b.Batch, a.Batch), cmp.Compare(a.Function, b.Function))
	})
	return list[:min(8, len(list))], all
}

// put makes the dataset.
func put(ctx context.Context, client flight.Client) error {
	stream, err := client.DoPut(ctx)
	if err != nil {
		return err
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.LargeBinary}}, nil)
	w := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD,
		Cmd: []byte(`{"put": {"dataset": "shape", "mode": "replace"}}`)})
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same bytes each time
	blob := make([]byte, bytesEach)
	for range rows / 256 {
		b := array.NewBinaryBuilder(memory.DefaultAllocator, arrow.BinaryTypes.LargeBinary)
		for range 256 {
			for i := range blob {
				blob[i] = byte(random.Uint32())
			}
			b.Append(blob)
		}
		record := array.NewRecord(schema, []arrow.Array{b.NewArray()}, 256)
		if err := w.Write(record); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if err.Error() != "EOF" {
		return err
	}
	return nil
}

// read reads an epoch.
func read(ctx context.Context, client flight.Client) error {
	ticket := fmt.Sprintf(`{"dataset": "shape", "columns": ["id", "image"], "batch": %d, "shuffle": {"seed": 7}}`, batch)
	stream, err := client.DoGet(ctx, &flight.Ticket{Ticket: []byte(ticket)})
	if err != nil {
		return err
	}
	r, err := flight.NewRecordReader(stream)
	if err != nil {
		return err
	}
	defer r.Release()
	n := 0
	for r.Next() {
		n += int(r.Record().NumRows())
	}
	if err := r.Err(); err != nil {
		return err
	}
	if n != rows {
		return fmt.Errorf("%d rows came instead of %d", n, rows)
	}
	return nil
}

// followed counts what a DoGet called: only what was called by its handler, and by goroutines that serve it.
func followed(stacks [][]string) *doGet {
	functions, packages := map[string]bool{}, map[string]bool{}
	hops, calls := map[[2]string]bool{}, map[[2]string]bool{}
	for _, names := range stacks {
		callee := names[0]
		functions[callee], packages[packageOf(callee)] = true, true
		for _, caller := range names[1:] {
			if !strings.HasPrefix(caller, "bowstring/") {
				continue // a library stands between the two
			}
			if from, to := packageOf(caller), packageOf(callee); from != to {
				hops[[2]string{from, to}], calls[[2]string{caller, callee}] = true, true
			}
			break
		}
	}
	found := &doGet{Functions: len(functions), Packages: len(packages), Hops: len(hops), Calls: len(calls)}
	// How far a package stands from the handler's, by calls; those that only goroutines of their own run come last.
	far := map[string]int{"flight": 1}
	for turn := 1; turn <= len(packages); turn++ {
		for h := range hops {
			if far[h[0]] == turn && far[h[1]] == 0 {
				far[h[1]] = turn + 1
			}
		}
	}
	for p := range packages {
		if far[p] == 0 {
			far[p] = len(packages)
		}
		found.Path = append(found.Path, p)
	}
	slices.SortFunc(found.Path, func(a, b string) int { return cmp.Or(cmp.Compare(far[a], far[b]), cmp.Compare(a, b)) })
	return found
}

// packageOf is the package of a function's full name: "fetch/read" of "bowstring/fetch/read.(*Reader).Read".
func packageOf(function string) string {
	folder, name := "", strings.TrimPrefix(function, "bowstring/")
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		folder, name = name[:i+1], name[i+1:]
	}
	name, _, _ = strings.Cut(name, ".")
	return folder + name
}

var woke = regexp.MustCompile(`^M=.* StateTransition .*GoID=\d+ (Waiting|NotExist)->Runnable`)

// wakes counts the goroutines that the program's own code woke or started, by the function that did, from a trace.
func wakes(ctx context.Context, path string) (map[string]int, error) {
	parsed := exec.CommandContext(ctx, "go", "tool", "trace", "-d=parsed", path)
	parsed.Stderr = os.Stderr
	out, err := parsed.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := parsed.Start(); err != nil {
		return nil, err
	}
	n := map[string]int{}
	waking, stack := false, false
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "M="):
			waking, stack = woke.MatchString(line), false
		case line == "Stack=": // of the goroutine that wakes another one
			stack = true
		case strings.HasSuffix(line, "Stack="): // of the other one
			stack = false
		case waking && stack && strings.HasPrefix(line, "\tbowstring/"):
			name, _, _ := strings.Cut(strings.TrimSpace(line), " @")
			n[name]++
			waking = false
		}
	}
	return n, cmp.Or(lines.Err(), parsed.Wait())
}
