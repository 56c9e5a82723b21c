package schema

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits and defaults of requests.
const (
	// MaxRequestBytes bounds the JSON of a request or ticket.
	MaxRequestBytes = 2 << 20
	// MaxPositions bounds a selection that is a list in the request itself, because each
	// ticket repeats it, also those in batches. Longer lists are uploaded and named.
	MaxPositions = 1024
	// MaxWhereBytes bounds the text of a where expression.
	MaxWhereBytes = 16 << 10
	// MaxBatch bounds the rows of a global batch.
	MaxBatch = 1<<31 - 1
	// MaxBatchBytes bounds batch_bytes.
	MaxBatchBytes = 1 << 30
	// MaxWorld bounds world.size.
	MaxWorld = 65536
	// MaxLocalBatch bounds the rows of a global batch with assign local, which the server
	// shares out as a whole.
	MaxLocalBatch = 1 << 18
	// MaxBucketRows bounds the samples that bucket_by_length sorts at once.
	MaxBucketRows = 1 << 16
	// DefaultBucketWindow is the window of bucket_by_length, in steps.
	DefaultBucketWindow = 32
	// MaxOrderWindow bounds K in order "window:K", in steps.
	MaxOrderWindow = 1 << 20

	// DefaultBatch is the rows of a global batch with blob columns.
	DefaultBatch = 64
	// DefaultMetaBatch is the rows of a global batch without blob columns, if samples are
	// not grouped by length.
	DefaultMetaBatch = 65536
	// DefaultBatchBytes is the default of batch_bytes.
	DefaultBatchBytes = 16 << 20
	// DefaultOrderWindow is K of order "window", in steps.
	DefaultOrderWindow = 16
)

// Values of Request.Order, Request.Remainder, Request.Assign and Request.OnError. The
// defaults are strict, uneven, plan and fail.
const (
	OrderStrict = "strict" // the exact order of the plan
	OrderWindow = "window" // a sample may move by a bounded number of steps; also "window:K"
	OrderFree   = "free"   // in the order of arrival

	RemainderDrop   = "drop"   // the last global batch is left out if it is incomplete
	RemainderPad    = "pad"    // it is filled with samples from the beginning of the epoch
	RemainderUneven = "uneven" // it is served as it is

	AssignPlan  = "plan"  // each rank gets its part of the plan's global batch
	AssignLocal = "local" // each rank gets as many rows, preferably those that the node on its machine owns

	OnErrorFail = "fail" // the stream ends with an error that names the sample
	OnErrorNull = "null" // the blob cell is null
	OnErrorSkip = "skip" // another sample replaces it, and the replacement is reported
)

// Layout is the type of blob columns in batches.
type Layout string

// The layouts. The default is LayoutLargeBinary.
const (
	LayoutLargeBinary Layout = "large_binary" // 64-bit offsets
	LayoutBinary      Layout = "binary"       // 32-bit offsets; a batch holds less than 2 GiB of a column
	LayoutHuggingFace Layout = "huggingface"  // what the Hugging Face datasets library reads; see NewProjection
)

// Request describes what to serve, and how: the JSON of a Flight command descriptor. Zero
// values mean the defaults in docs/requests.md.
//
// Split, Where and Selection each narrow the served samples; a sample is served if it
// meets all that are set.
type Request struct {
	Dataset   string        `json:"dataset,omitempty"`
	Snapshot  int64         `json:"snapshot,omitempty"` // 0: the newest, or the one with the tag
	Tag       string        `json:"tag,omitempty" text:"snapshot"`
	Split     string        `json:"split,omitempty"` // "": all rows
	Where     string        `json:"where,omitempty"` // an expression over metadata columns
	Selection *SelectionRef `json:"selection,omitempty"`
	// Mixture replaces Dataset and its selection by samples of several sources; nil:
	// samples of the dataset.
	Mixture *Mixture `json:"mixture,omitempty"`
	Columns []string `json:"columns,omitempty"` // nil: all stored columns
	// Operators transform blob columns before they are sent; nil: no change.
	Operators Operators `json:"operators,omitempty"`
	// Place is where operators run; "": on the server.
	Place   string   `json:"place,omitempty"`
	Layout  Layout   `json:"layout,omitempty"`
	Shuffle *Shuffle `json:"shuffle,omitempty"` // nil: in order of position
	Batch   int64    `json:"batch,omitempty"`   // rows of a global batch; 0: DefaultBatch or DefaultMetaBatch
	// a record batch exceeds it by at most one sample; 0: DefaultBatchBytes
	BatchBytes int64  `json:"batch_bytes,omitempty"`
	World      *World `json:"world,omitempty"` // nil: one rank
	Order      string `json:"order,omitempty"`
	Remainder  string `json:"remainder,omitempty"`
	OnError    string `json:"on_error,omitempty"`
	Assign     string `json:"assign,omitempty"`
	// Owners names the layout of the cluster by which assign local shares batches; ""
	// means the epoch's layout.
	Owners string `json:"owners,omitempty"`
	// Ranks are the nodes on the machines of the ranks, by rank; nil: as the layout says.
	Ranks []string `json:"ranks,omitempty"`
	// BucketByLength groups samples of similar length; nil: lengths do not matter.
	BucketByLength *BucketByLength `json:"bucket_by_length,omitempty"`
	// Sample chooses samples by weight or by class; nil: each sample occurs once.
	Sample *Sample `json:"sample,omitempty"`
	// Pack serves documents in sequences of a length; nil: each sample is a row.
	Pack *Pack `json:"pack,omitempty"`
	// Slices gives context parallel ranks their part of each sequence; nil: whole
	// sequences.
	Slices *Slices `json:"slices,omitempty"`
	// Digest adds a digest of the samples of each step at its end. Ranks that should get
	// the same samples compare it.
	Digest bool `json:"digest,omitempty"`
	// Within is the part of the data that the caller may see. The server sets it from its
	// rules for each call; no request or ticket contains it.
	Within *Restriction `json:"-"`
}

// Shuffle selects the permutation that seed and epoch determine.
type Shuffle struct {
	Seed  uint64 `json:"seed"`
	Epoch uint64 `json:"epoch"`
	// Block shuffles blocks of consecutive samples, and then the samples within clusters
	// of Blocks blocks, so that reads stay mostly sequential. It is in bytes of blobs,
	// such as 8MiB; the server replaces it by BlockRows, with the mean of the snapshot.
	// "" shuffles all samples freely.
	Block     string `json:"block,omitempty"`
	BlockRows int64  `json:"block_rows,omitempty"` // samples of a block, instead of Block
	Blocks    int64  `json:"blocks,omitempty"`     // of a cluster; 0: DefaultBlocks
}

// Limits and defaults of shuffles of blocks.
const (
	DefaultBlocks = 256
	MaxBlocks     = 1 << 20
	MaxBlockRows  = 1 << 40
	maxBlockBytes = 1 << 40
)

// InBlocks reports whether the shuffle is one of blocks.
func (s *Shuffle) InBlocks() bool { return s != nil && (s.Block != "" || s.BlockRows > 0) }

// BlockBytes is the value of Block in bytes; false if Block is malformed.
func (s *Shuffle) BlockBytes() (int64, bool) {
	for unit, shift := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if number, ok := strings.CutSuffix(s.Block, unit); ok {
			n, err := strconv.ParseInt(number, 10, 64)
			return n << shift, err == nil && n > 0 && n <= maxBlockBytes>>shift && number == strconv.FormatInt(n, 10)
		}
	}
	return 0, false
}

// check implements checker.
func (s *Shuffle) check(field string) error {
	switch path := "shuffle." + field; field {
	case "block":
		if _, ok := s.BlockBytes(); !ok {
			return &FieldError{Field: path, Got: Quote(s.Block),
				Want: `bytes such as "8MiB", with KiB, MiB or GiB, up to "1024GiB"`}
		}
		if s.BlockRows != 0 {
			return &FieldError{Field: path, Got: "both block and block_rows", Want: "one of them"}
		}
	case "block_rows":
		return checkRange(path, s.BlockRows, 1, MaxBlockRows)
	case "blocks":
		if !s.InBlocks() {
			return &FieldError{Field: path, Got: "it without block", Want: `block, such as "8MiB", or neither`}
		}
		return checkRange(path, s.Blocks, 1, MaxBlocks)
	}
	return nil
}

// ParseRequest decodes and checks the JSON of a request, as strictly as DecodeJSON. A
// field out of its range is a FieldError too.
func ParseRequest(b []byte) (Request, error) {
	var r Request
	if err := DecodeJSON("request", b, &r); err != nil {
		return Request{}, err
	}
	return r.Checked()
}

// Checked is ParseRequest for a request that was decoded as a part of something else.
func (r Request) Checked() (Request, error) {
	r.Selection.sort()
	if err := r.Check(); err != nil {
		return Request{}, err
	}
	return r, nil
}

// RequestFromPath makes the request of a Flight path descriptor: the dataset, optionally
// with "@" and a snapshot number or a tag, then optionally the split. All columns are
// served, in order.
func RequestFromPath(path []string) (Request, error) {
	if len(path) < 1 || len(path) > 2 {
		return Request{}, &FieldError{Field: "path", Got: fmt.Sprintf("%d elements", len(path)),
			Want: `["dataset"], ["dataset", "split"] or, for one snapshot, ["dataset@number", "split"] or ["dataset@tag", "split"]`}
	}
	var r Request
	var err error
	if r.Dataset, r.Snapshot, r.Tag, err = ParseSnapshotName("path[0]", path[0]); err != nil {
		return Request{}, err
	}
	if len(path) == 2 {
		r.Split = path[1]
		if err := CheckName("path[1]", r.Split); err != nil {
			return Request{}, err
		}
	}
	return r, nil
}

// Marshal returns the canonical JSON: fields in a fixed order, defaults left out, no
// spaces. Equal requests have equal JSON. ParseRequest parses it to r again.
func (r Request) Marshal() []byte { return marshal(r) }

// Check returns the first impossible field as a FieldError. It cannot check whether the
// named data exists.
func (r Request) Check() error {
	if err := r.checkNamed(); err != nil {
		return err
	}
	return checkAll(&r)
}

// checkNamed checks that the request names a dataset or a mixture.
func (r *Request) checkNamed() error {
	if r.Dataset == "" && r.Mixture == nil {
		return CheckName("dataset", r.Dataset)
	}
	return nil
}

// checkAll checks the fields of a struct that are set: those that are not zero, and those
// that are never left out.
func checkAll(c checker) error {
	v := reflect.ValueOf(c).Elem()
	for _, f := range jsonFields(v.Type()) {
		if f.optional && v.FieldByIndex(f.index).IsZero() {
			continue
		}
		if err := c.check(f.name); err != nil {
			return err
		}
	}
	return nil
}

// check checks a field that is set.
func (r *Request) check(field string) error {
	switch field {
	case "dataset":
		return CheckName(field, r.Dataset)
	case "snapshot":
		return checkRange(field, r.Snapshot, 0, math.MaxInt64)
	case "tag":
		return checkSnapshotOrTag(r.Snapshot, r.Tag)
	case "split":
		return CheckName(field, r.Split)
	case "where":
		return checkWhere(r.Where)
	case "selection":
		return r.Selection.checkSet()
	case "mixture":
		return r.checkMixture()
	case "columns":
		return checkColumns(r.Columns)
	case "operators":
		return r.checkOperators()
	case "place":
		return r.checkPlace()
	case "layout":
		return checkOneOf(field, string(r.Layout), string(LayoutLargeBinary), string(LayoutBinary),
			string(LayoutHuggingFace))
	case "batch":
		return checkRange(field, r.Batch, 1, MaxBatch)
	case "batch_bytes":
		return checkRange(field, r.BatchBytes, 1, MaxBatchBytes)
	case "shuffle":
		return checkAll(r.Shuffle)
	case "world":
		return r.checkWorld()
	case "order":
		if _, _, ok := parseOrder(r.Order); !ok || r.Order == "" {
			return &FieldError{Field: field, Got: Quote(r.Order),
				Want: fmt.Sprintf("%q, %q, \"window:K\" with K from 1 to %d, or %q", OrderStrict, OrderWindow,
					MaxOrderWindow, OrderFree)}
		}
	case "remainder":
		return checkOneOf(field, r.Remainder, RemainderDrop, RemainderPad, RemainderUneven)
	case "on_error":
		return checkOneOf(field, r.OnError, OnErrorFail, OnErrorNull, OnErrorSkip)
	case "assign":
		return r.checkAssign()
	case "owners":
		return r.checkOwners()
	case "ranks":
		return r.checkRanks()
	case "bucket_by_length":
		return r.checkBuckets()
	case "sample":
		return r.checkSample()
	case "pack":
		return r.checkPack()
	case "slices":
		return r.checkSlices()
	case "digest":
		return r.checkDigest()
	}
	return nil
}

// checkWorld checks World, which is set, and Order.
func (r *Request) checkWorld() error {
	if err := r.World.checkAll(); err != nil {
		return err
	}
	if mode, _ := r.OrderOf(); r.Replicas() > 1 && (mode == OrderWindow || mode == OrderFree) {
		return &FieldError{Field: "order", Got: Quote(r.Order), Want: fmt.Sprintf(
			"%q, as several ranks of the world are to get the same batch", OrderStrict)}
	}
	return nil
}

// checkDigest checks Digest, which is set.
func (r *Request) checkDigest() error {
	if mode, _ := r.OrderOf(); r.Digest && mode != OrderStrict {
		return &FieldError{Field: "order", Got: Quote(r.Order), Want: fmt.Sprintf(
			"%q, as with any other a batch may have samples of other steps", OrderStrict)}
	}
	return nil
}

// checkAssign checks Assign, which is set, and Batch.
func (r *Request) checkAssign() error {
	if r.Assign == AssignLocal && r.Batch > MaxLocalBatch {
		return &FieldError{Field: "batch", Got: strconv.FormatInt(r.Batch, 10),
			Want: fmt.Sprintf("at most %d where assign is %q", MaxLocalBatch, AssignLocal)}
	}
	return checkOneOf("assign", r.Assign, AssignPlan, AssignLocal)
}

// checkOwners checks Owners, which is set.
func (r *Request) checkOwners() error {
	if k, err := ParseKey(r.Owners); err != nil || k.String() != r.Owners {
		return &FieldError{Field: "owners", Got: Quote(r.Owners),
			Want: "the 64 lower-case hexadecimal digits that name a layout"}
	}
	return r.checkLocal("owners")
}

// checkRanks checks Ranks, which is set.
func (r *Request) checkRanks() error {
	if n := r.DataRanks(); int64(len(r.Ranks)) != n {
		want := fmt.Sprintf("one for each rank, as world.size is %d", n)
		if r.Replicas() > 1 {
			want = fmt.Sprintf("one for each of %d data ranks", n)
		}
		return &FieldError{Field: "ranks", Got: fmt.Sprintf("%d nodes", len(r.Ranks)), Want: want}
	}
	for i, id := range r.Ranks {
		if err := CheckName(fmt.Sprintf("ranks[%d]", i), id); err != nil {
			return err
		}
	}
	return r.checkLocal("ranks")
}

// checkLocal fails if a field that only assign local uses is set without it.
func (r *Request) checkLocal(field string) error {
	if r.Assign != AssignLocal {
		return &FieldError{Field: field, Got: fmt.Sprintf("it with assign %q", cmp.Or(r.Assign, AssignPlan)),
			Want: fmt.Sprintf("it left out, or assign %q", AssignLocal)}
	}
	return nil
}

// OrderOf returns OrderStrict, OrderWindow or OrderFree, and for OrderWindow the number
// of steps by which a sample may move.
func (r Request) OrderOf() (mode string, steps int64) {
	mode, steps, _ = parseOrder(r.Order)
	return mode, steps
}

func parseOrder(s string) (mode string, steps int64, ok bool) {
	switch s {
	case "", OrderStrict:
		return OrderStrict, 0, true
	case OrderFree:
		return OrderFree, 0, true
	case OrderWindow:
		return OrderWindow, DefaultOrderWindow, true
	}
	k, found := strings.CutPrefix(s, OrderWindow+":")
	n, err := strconv.ParseInt(k, 10, 64)
	if !found || err != nil || n < 1 || n > MaxOrderWindow || k != strconv.FormatInt(n, 10) {
		return "", 0, false
	}
	return OrderWindow, n, true
}

func checkWhere(where string) error {
	return checkExpression("where", where, "an expression; leave the field out for all rows")
}

func checkColumns(columns []string) error {
	if len(columns) == 0 || len(columns) > MaxColumns {
		return &FieldError{Field: "columns", Got: fmt.Sprintf("%d names", len(columns)),
			Want: fmt.Sprintf("1 to %d column names; leave the field out for all columns", MaxColumns)}
	}
	seen := make(map[string]bool, len(columns))
	for i, c := range columns {
		path := fmt.Sprintf("columns[%d]", i)
		if c == "" || len(c) > MaxNameLen || !utf8.ValidString(c) {
			return &FieldError{Field: path, Got: Quote(c), Want: fmt.Sprintf("a column name of 1 to %d bytes",
				MaxNameLen)}
		}
		if seen[c] {
			return &FieldError{Field: path, Got: Quote(c) + " again", Want: "each column once"}
		}
		seen[c] = true
	}
	return nil
}

func checkRange(field string, v, lo, hi int64) error {
	if v < lo || v > hi {
		most := strconv.FormatInt(hi, 10)
		if hi == math.MaxInt64 {
			most = "2^63-1"
		}
		return &FieldError{Field: field, Got: strconv.FormatInt(v, 10), Want: fmt.Sprintf("an integer from %d to %s",
			lo, most)}
	}
	return nil
}

func checkOneOf(field, v string, allowed ...string) error {
	if slices.Contains(allowed, v) {
		return nil
	}
	return notOneOf(field, v, allowed)
}

func notOneOf(field, v string, allowed []string) error {
	quoted := make([]string, len(allowed))
	for i, a := range allowed {
		quoted[i] = strconv.Quote(a)
	}
	want := strings.Join(quoted[:len(quoted)-1], ", ") + " or " + quoted[len(quoted)-1]
	if n := Nearest(v, allowed); n != "" {
		want += fmt.Sprintf(" (did you mean %q?)", n)
	}
	return &FieldError{Field: field, Got: Quote(v), Want: want}
}

// marshal encodes JSON without escaping HTML, because "<" is common in expressions.
func marshal(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // plain structs of strings and integers always encode
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// SelectionRef is a set of positions: the name of an uploaded selection, or a list.
// Exactly one of the two is set.
type SelectionRef struct {
	Name      string  `json:"name,omitempty"`      // as Selection.Name
	Positions []int64 `json:"positions,omitempty"` // ascending and unique; ParseRequest sorts them
}

// sort sorts the positions, if there are any, in ascending order.
func (s *SelectionRef) sort() {
	if s != nil {
		slices.Sort(s.Positions)
	}
}

// checkSet checks that one of the fields is set, and checks it.
func (s *SelectionRef) checkSet() error {
	switch {
	case s.Name != "" && s.Positions != nil:
		return &FieldError{Field: "selection", Got: "both name and positions", Want: "one of them"}
	case s.Name == "" && s.Positions == nil:
		return &FieldError{Field: "selection", Got: "neither name nor positions", Want: "one of them"}
	}
	return checkAll(s)
}

// check checks a field that is set.
func (s *SelectionRef) check(field string) error {
	path := "selection." + field
	if field == "name" {
		if k, err := ParseKey(s.Name); err != nil || k.String() != s.Name {
			return &FieldError{Field: path, Got: Quote(s.Name),
				Want: "the 64 lower-case hexadecimal digits that name an uploaded selection"}
		}
		return nil
	}
	if n := len(s.Positions); n == 0 || n > MaxPositions {
		return &FieldError{Field: path, Got: fmt.Sprintf("%d positions", n),
			Want: fmt.Sprintf("1 to %d, as each ticket repeats them; upload a longer selection by DoPut with "+
				"the command "+
				`{"selection": {"dataset": …}} and a column "position", and give the name that it answers`,
				MaxPositions)}
	}
	for i, p := range s.Positions {
		if p < 0 {
			return &FieldError{Field: path, Got: strconv.FormatInt(p, 10), Want: "positions from 0"}
		}
		if i > 0 && p == s.Positions[i-1] {
			return &FieldError{Field: path, Got: fmt.Sprintf("%d twice", p), Want: "each position once"}
		}
		if i > 0 && p < s.Positions[i-1] {
			return &FieldError{Field: path, Got: fmt.Sprintf("%d after %d", p, s.Positions[i-1]),
				Want: "ascending positions"}
		}
	}
	return nil
}

// BucketByLength makes batches of samples of similar length: the samples of several
// consecutive steps are sorted by length and distributed to these steps again. Less
// padding is needed then.
type BucketByLength struct {
	// Column is the length of a sample: a metadata column of integers or floats, or a
	// blob column, whose cells' sizes in bytes count. Null and negative values count as
	// 0. "" uses the cost of Balance as the length.
	Column string `json:"column,omitempty"`
	// Window is the number of steps that are sorted together; 0 means
	// DefaultBucketWindow, or fewer if that would be more than MaxBucketRows samples.
	Window int64 `json:"window,omitempty"`
	// Balance shares the samples of a step by their cost; nil shares them by number.
	Balance *BucketBalance `json:"balance,omitempty"`
}

// BucketBalance defines the cost of a sample.
type BucketBalance struct {
	// Cost is an expression over metadata columns that gives a number from 0.
	Cost string `json:"cost"`
}

// check implements checker.
func (b *BucketBalance) check(string) error {
	return checkExpression("bucket_by_length.balance.cost", b.Cost,
		`a column, or an expression over columns, such as "width * height"`)
}

// check implements checker.
func (b *BucketByLength) check(field string) error {
	switch field {
	case "column":
		if b.Column == "" {
			return &FieldError{Field: "bucket_by_length.column", Got: `""`,
				Want: "the column that says how long samples are"}
		}
	case "window":
		return checkRange("bucket_by_length.window", b.Window, 1, MaxBucketRows)
	case "balance":
		return checkAll(b.Balance)
	}
	return nil
}

// checkBuckets checks BucketByLength, which is set, as far as Batch is set.
func (r *Request) checkBuckets() error {
	b := r.BucketByLength
	if err := checkAll(b); err != nil {
		return err
	}
	if b.Column == "" && b.Balance == nil {
		return b.check("column")
	}
	if b.Balance != nil && r.Assign == AssignLocal {
		return &FieldError{Field: "bucket_by_length.balance", Got: "it with assign " + strconv.Quote(AssignLocal),
			Want: fmt.Sprintf("assign %q: the place of a sample is not its cost", AssignPlan)}
	}
	if mode, _ := r.OrderOf(); mode != OrderStrict {
		return &FieldError{Field: "order", Got: Quote(r.Order),
			Want: fmt.Sprintf("%q, as other orders take batches of bucket_by_length apart", OrderStrict)}
	}
	if r.Batch > MaxBucketRows {
		return &FieldError{Field: "batch", Got: strconv.FormatInt(r.Batch, 10),
			Want: fmt.Sprintf("at most %d with bucket_by_length", MaxBucketRows)}
	}
	if r.Batch > 0 && b.Window > MaxBucketRows/r.Batch {
		return &FieldError{Field: "bucket_by_length.window", Got: strconv.FormatInt(b.Window, 10),
			Want: fmt.Sprintf("at most %d steps of %d samples", MaxBucketRows/r.Batch, r.Batch)}
	}
	return nil
}

// Ticket names the part of a request's epoch that one stream serves: the share of a rank
// in steps Step, Step+Stride, Step+2·Stride, … below Stop, and the number of consecutive
// epochs. It is the complete state of a stream, so a client can resume from a ticket that
// it stored or wrote.
type Ticket struct {
	Request
	// Rank is in [0, WorldSize). Its share is that of its DataRank.
	Rank int `json:"rank"`
	// Step is the first step served, from 0.
	Step int64 `json:"step"`
	// Row is how many samples of this rank's share of Step are skipped, because they were
	// served before.
	Row int64 `json:"row,omitempty"`
	// Stride is the distance between served steps; 0 means 1. With N workers, worker w
	// uses Step w and Stride N.
	Stride int64 `json:"stride,omitempty"`
	// Stop is the first step that is not served; nil means the end of the epoch.
	Stop *int64 `json:"stop,omitempty"`
	// Epochs is the number of epochs to serve, from shuffle.epoch on; 0 means 1. Step,
	// Row and Served belong to the first. With stride N, each later epoch begins at step
	// Step mod N, so that workers keep their steps. It excludes Stop.
	Epochs int64 `json:"epochs,omitempty"`
	// Served describes the rows that a stream with another order than the plan's has
	// served already: bit i (of byte i/8, the least significant first) is set if the i-th
	// row of the first epoch was served. Rows are counted in the plan's order, from Row
	// of Step on, among those of this ticket. The last byte is not 0; nil means none. It
	// is only used with orders other than strict.
	Served []byte `json:"served,omitempty"`
	// Digested is the digest of the Row served samples of Step, as 16 hexadecimal digits;
	// "" for 0. It is only used with Digest. A stream that begins within a step without
	// it sends no digest of that step.
	Digested string `json:"digested,omitempty"`
}

// ParseTicket decodes and checks the JSON of a ticket, as strictly as ParseRequest.
func ParseTicket(b []byte) (Ticket, error) {
	var t Ticket
	if err := DecodeJSON("ticket", b, &t); err != nil {
		return Ticket{}, err
	}
	t.Selection.sort()
	if err := t.Check(); err != nil {
		return Ticket{}, err
	}
	return t, nil
}

// Marshal returns the canonical JSON. ParseTicket parses it to t again.
func (t Ticket) Marshal() []byte { return marshal(t) }

// TicketEncoder encodes the tickets of one stream. They differ in where they begin and in
// the epoch of Shuffle, and in nothing else. The encoder encodes the request once for each
// epoch: a mixture has many sources, and each batch has a ticket. The zero value is ready
// for use, by one goroutine at a time.
type TicketEncoder struct {
	shuffle Shuffle // that of request
	request []byte  // the JSON of a request without the last brace; nil before the first ticket
}

// Marshal returns t.Marshal().
func (e *TicketEncoder) Marshal(t Ticket) []byte {
	if e.request == nil || t.Shuffle != nil && *t.Shuffle != e.shuffle {
		all := t.Request.Marshal()
		e.request = all[:len(all)-1]
		if t.Shuffle != nil {
			e.shuffle = *t.Shuffle
		}
	}
	t.Request = Request{}
	own := marshal(t) // the zero Request has no field in JSON
	own[0] = ','
	return append(e.request[:len(e.request):len(e.request)], own...)
}

// Check returns the first impossible field as a FieldError.
func (t Ticket) Check() error {
	if err := t.checkNamed(); err != nil {
		return err
	}
	if err := checkAll(&t); err != nil {
		return err
	}
	if n := t.WorldSize(); t.Rank < 0 || int64(t.Rank) >= n {
		want := fmt.Sprintf("an integer from 0 to %d, as world.size is %d", n-1, n)
		if t.World != nil && t.World.Mesh != "" {
			want = fmt.Sprintf("an integer from 0 to %d, as world.mesh is %q", n-1, t.World.Mesh)
		}
		if t.World == nil {
			want = "0, as the ticket has no world"
		}
		return &FieldError{Field: "rank", Got: strconv.Itoa(t.Rank), Want: want}
	}
	if t.Stop != nil && *t.Stop < t.Step {
		return &FieldError{Field: "stop", Got: strconv.FormatInt(*t.Stop, 10),
			Want: fmt.Sprintf("an integer from step, which is %d, to 2^63-1", t.Step)}
	}
	if t.Epochs != 0 {
		if err := t.checkEpochs(); err != nil {
			return err
		}
	}
	if mode, _ := t.OrderOf(); t.Served != nil && mode == OrderStrict {
		return &FieldError{Field: "served", Got: "it with order " + strconv.Quote(mode),
			Want: "it left out, as step and row say where an exact order stands; or the order that the stream had"}
	}
	return nil
}

// checkEpochs checks Epochs, which is set, against other fields.
func (t Ticket) checkEpochs() error {
	got := strconv.FormatInt(t.Epochs, 10)
	if t.Stop != nil {
		return &FieldError{Field: "epochs", Got: fmt.Sprintf("%s and stop %d", got, *t.Stop),
			Want: "one of the two: stop ends a stream within its epoch"}
	}
	if t.Shuffle != nil && uint64(t.Epochs-1) > math.MaxUint64-t.Shuffle.Epoch {
		return &FieldError{Field: "epochs", Got: got,
			Want: fmt.Sprintf("an integer from 1 to %d, as shuffle.epoch is %d and the last is 2^64-1",
				math.MaxUint64-t.Shuffle.Epoch+1, t.Shuffle.Epoch)}
	}
	return nil
}

// check checks a field that is set.
func (t *Ticket) check(field string) error {
	switch field {
	case "rank":
		return checkRange(field, int64(t.Rank), 0, MaxWorld-1)
	case "step":
		return checkRange(field, t.Step, 0, math.MaxInt64)
	case "row":
		return checkRange(field, t.Row, 0, MaxBatch)
	case "stride":
		return checkRange(field, t.Stride, 1, MaxStride)
	case "epochs":
		return checkRange(field, t.Epochs, 1, MaxEpochs)
	case "served":
		return checkServed(t.Served)
	case "digested":
		return t.checkDigested()
	}
	return t.Request.check(field)
}

// checkDigested checks Digested, which is set.
func (t *Ticket) checkDigested() error {
	if !t.Digest || t.Row == 0 {
		return &FieldError{Field: "digested", Got: "it without digest, or with row 0",
			Want: "it left out, or the ticket that came with the batch before"}
	}
	if _, ok := t.DigestedSum(); !ok {
		return &FieldError{Field: "digested", Got: Quote(t.Digested), Want: "16 lower-case hexadecimal digits"}
	}
	return nil
}

// DigestedSum is the number in Digested; false if Digested is malformed.
func (t *Ticket) DigestedSum() (uint64, bool) {
	n, err := strconv.ParseUint(t.Digested, 16, 64)
	return n, err == nil && DigestOf(n) == t.Digested
}

// DigestOf is the text form of a digest.
func DigestOf(sum uint64) string { return fmt.Sprintf("%016x", sum) }

// checkServed checks the bitmap of served rows: it has one form only, so that equal
// states have equal tickets.
func checkServed(bits []byte) error {
	n := len(bits)
	switch {
	case n == 0:
		return &FieldError{Field: "served", Got: "no bits",
			Want: "a bitmap with a bit set; leave the field out if nothing was served"}
	case n > MaxServedBytes:
		return &FieldError{Field: "served", Got: fmt.Sprintf("%d bytes", n),
			Want: fmt.Sprintf("at most %d, decoded", MaxServedBytes)}
	case bits[n-1] == 0:
		return &FieldError{Field: "served", Got: fmt.Sprintf("a last byte of 0, of %d", n),
			Want: "the bitmap to end with the byte of the last bit set; leave the field out if none is"}
	}
	return nil
}

// Limits of tickets.
const (
	// MaxStride bounds Ticket.Stride.
	MaxStride = 1<<31 - 1
	// MaxEpochs bounds Ticket.Epochs.
	MaxEpochs = 1<<31 - 1
	// MaxServedBytes bounds Ticket.Served. A stream out of order may be at most eight
	// times as many rows ahead of its first gap.
	MaxServedBytes = 16 << 10
)
