package plan

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sort"
	"strconv"
	"sync"

	"bowstring/schema"
)

// PackBy says how documents are put into sequences.
type PackBy int

const (
	// BestFit puts each document of a window, from the longest on, into the fullest sequence that has room for it.
	BestFit PackBy = iota
	// FirstFit puts it into the first one that has.
	FirstFit
	// Concat lays the documents end to end, and cuts that into sequences: no room is left but at a window's end, and
	// documents are cut.
	Concat
)

var packBys = [...]string{BestFit: "best_fit", FirstFit: "first_fit", Concat: "split"}

// String returns the word that requests use.
func (b PackBy) String() string { return wordOf(packBys[:], int(b)) }

// ParsePackBy reads the word that requests use, the empty one being "best_fit". The error is a [schema.FieldError].
func ParsePackBy(s string) (PackBy, error) {
	at, err := parseWord("pack.by", packBys[:], s)
	return PackBy(at), err
}

// Long is what happens to documents that are longer than a sequence. It does not apply to
// Concat, which cuts all documents.
type Long int

const (
	// LongError has the plan not be made.
	LongError Long = iota
	// LongCut serves as much of the start as a sequence has room for, and leaves the rest out.
	LongCut
	// LongSplit fills sequences of their own from the start on; the rest is packed as a document is.
	LongSplit
	// LongDrop leaves the documents out.
	LongDrop
)

var longs = [...]string{LongError: "error", LongCut: "cut", LongSplit: "split", LongDrop: "drop"}

// String returns the word that requests use.
func (l Long) String() string { return wordOf(longs[:], int(l)) }

// ParseLong reads the word that requests use, the empty one being "error". The error is a [schema.FieldError].
func ParseLong(s string) (Long, error) {
	at, err := parseWord("pack.long", longs[:], s)
	return Long(at), err
}

func wordOf(words []string, at int) string {
	if at < 0 || at >= len(words) {
		return strconv.Itoa(at)
	}
	return words[at]
}

// parseWord finds a word; the empty one is the first.
func parseWord(field string, words []string, s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	if at := slices.Index(words, s); at >= 0 {
		return at, nil
	}
	return 0, &schema.FieldError{Field: field, Got: schema.Quote(s), Want: "one of " + schema.ShownList(words)}
}

const (
	// MaxPackLength bounds the tokens of a sequence.
	MaxPackLength = 1 << 20
	// MaxWindowPieces bounds the pieces of a window that is packed, which ends where it would have more.
	MaxWindowPieces = 1 << 17
	// maxPackWindows bounds the windows of an epoch.
	maxPackWindows = 1 << 20
	// keptPieces and maxKept bound the windows that are kept, of all epochs together.
	keptPieces = 1 << 20
	// keptTables is of how many epochs the tables are kept: streams are at one, and look ahead into the next.
	keptTables = 4
)

// PackConfig says how the documents of a plan are packed into sequences.
type PackConfig struct {
	// Length is how many tokens a sequence has room for, 1 to MaxPackLength.
	Length int64
	By     PackBy
	Long   Long
	// Window is how many documents of the epoch's order are packed together: 1 to MaxWindowRows, 0 being that many.
	Window int64
	// Lengths has the tokens of the document at a position.
	Lengths Lengths
	// Cost, where it is not nil, has sequences of like cost go together into steps. It has what a piece costs, by its
	// tokens: from 0 up to Length. A sequence costs what its pieces do together.
	Cost []float64
}

// Pack packs the documents of a plan's epochs into sequences with a bounded number of
// tokens. The epoch's order of documents is cut into windows, and each window is packed
// alone: its documents become pieces, and the sequences contain the pieces in the order of
// their documents. If the order is shuffled, the sequences of a window are permuted by the
// seed, the epoch and the window. Otherwise they are in the order of their first documents.
//
// Each document with a token comes exactly once in an epoch, and so does each of its tokens
// if documents are cut (Concat, LongSplit). Exceptions are documents that PackConfig.Long
// leaves out, and sequences that the remainder leaves out or repeats.
//
// With PackConfig.Cost the whole steps of a window have sequences of similar cost: the
// sequences are sorted by cost and cut into steps, which are permuted if the order is
// shuffled. Within a step the sequences are ordered so that runs of the same length cost
// about the same. So ranks cost about the same in any world, and so do parts of their
// shares. A step with sequences of two windows gets those whose cost is nearest to the mean
// of the epoch.
//
// The number of sequences of a window depends on its documents. So an epoch has a table
// with 24 bytes a window, for which all windows are packed once: see Prepare. A window is
// packed again when one of its pieces is requested. The recently used windows are cached,
// within a bound. One Pack serves plans that differ only in the epoch and the world. It is
// safe for concurrent use.
type Pack struct {
	cfg  PackConfig
	cost []uint64 // by tokens; nil where costs do not count

	making sync.Mutex // held while a table is made, so that each is made once

	mu     sync.Mutex
	of     *packedPlan // what it is used for, once it is
	tables []*packTable
	packer packer
	kept   map[windowKey]*packedWindow
	pieces int // of kept
	uses   int64
}

// packedPlan is what the plans of a Pack have in common.
type packedPlan struct {
	n, batch                 int64
	shuffle                  bool
	seed                     uint64
	blockRows, clusterBlocks int64
	mix                      *Mix
	weights                  *SampleWeights
	balance                  *Balance
	replacement              bool
}

// Packing says what an epoch's documents have become.
type Packing struct {
	Documents int64 // of the epoch
	Empty     int64 // of them, those without a token, which are left out
	Long      int64 // those that are longer than a sequence, where these are cut, split or left out
	Cut       int64 // tokens that are left out of these
	Tokens    int64 // in sequences
	Pieces    int64
	Sequences int64 // before the remainder leaves some out, or repeats some
	Windows   int64
}

// Padding is the part of the sequences' room that has no token.
func (k Packing) Padding(length int64) float64 {
	if k.Sequences == 0 {
		return 0
	}
	return 1 - float64(k.Tokens)/(float64(k.Sequences)*float64(length))
}

// Piece is a document, or a part of one, in a sequence.
type Piece struct {
	Position int64 // of the document, in the snapshot
	Sequence int64 // of the plan
	At       int64 // where in the sequence it begins, in tokens
	From     int64 // where in the document it begins
	Length   int64
}

// packTable says where the windows of an epoch begin.
type packTable struct {
	epoch                   uint64
	used                    int64
	docs, sequences, pieces []int64 // those before each window, and then all
	level                   uint64  // what a sequence costs on average
	sum                     Packing
}

// packedWindow is a window that was packed.
type packedWindow struct {
	pieces []part
	starts []int32 // of its sequences, among the pieces; then the number of these
	used   int64
}

// NewPack returns what packs documents for plans. It takes PackBytes at most. Errors are [schema.FieldError]s.
func NewPack(cfg PackConfig) (*Pack, error) {
	if cfg.Length < 1 || cfg.Length > MaxPackLength {
		return nil, &schema.FieldError{Field: "pack.length", Got: strconv.FormatInt(cfg.Length, 10),
			Want: fmt.Sprintf("1 to %d tokens", MaxPackLength)}
	}
	if cfg.Window == 0 {
		cfg.Window = MaxWindowRows
	}
	if cfg.Window < 1 || cfg.Window > MaxWindowRows {
		return nil, &schema.FieldError{Field: "pack.window", Got: strconv.FormatInt(cfg.Window, 10),
			Want: fmt.Sprintf("1 to %d documents", MaxWindowRows)}
	}
	if cfg.By < BestFit || cfg.By > Concat || cfg.Long < LongError || cfg.Long > LongDrop {
		return nil, fmt.Errorf("%w: documents packed by %v, long ones %v", schema.ErrInvalid, cfg.By, cfg.Long)
	}
	if cfg.By == Concat && (cfg.Long == LongCut || cfg.Long == LongDrop) {
		return nil, &schema.FieldError{Field: "pack.long", Got: strconv.Quote(cfg.Long.String()),
			Want: fmt.Sprintf("it left out, as by %q cuts all documents, and leaves nothing out", Concat)}
	}
	k := &Pack{cfg: cfg, kept: map[windowKey]*packedWindow{}}
	if cfg.Cost != nil {
		if err := k.setCost(); err != nil {
			return nil, err
		}
	}
	k.packer.cfg = &k.cfg
	return k, nil
}

// costBits is how many bits what a piece costs has at most. With MaxWindowPieces pieces in a sequence, and its number
// behind, that is 64.
const costBits = 30

// setCost makes costs whole numbers, which add up the same in any order and on any machine.
func (k *Pack) setCost() error {
	if int64(len(k.cfg.Cost)) != k.cfg.Length+1 {
		return fmt.Errorf("%w: costs of %d lengths, want those from 0 to %d", schema.ErrInvalid, len(k.cfg.Cost), k.cfg.Length)
	}
	most := 0.0
	for n, c := range k.cfg.Cost[1:] {
		if !(c >= 0 && c <= math.MaxFloat64) {
			return &schema.FieldError{Field: "pack.balance.cost",
				Got:  fmt.Sprintf("%s for %d tokens", strconv.FormatFloat(c, 'g', -1, 64), n+1),
				Want: "a number that is not below 0, for each length"}
		}
		most = max(most, c)
	}
	if most == 0 {
		return &schema.FieldError{Field: "pack.balance.cost", Got: "0 for each length", Want: "a cost of more than 0"}
	}
	k.cost = make([]uint64, len(k.cfg.Cost))
	for n, c := range k.cfg.Cost[1:] {
		k.cost[n+1] = uint64(math.Round(c / most * (1<<costBits - 1)))
	}
	k.cfg.Cost = nil
	return nil
}

// PackBytes is the memory for packing n documents an epoch, without the lengths: cached
// windows, the tables of some epochs, and the working memory for a window.
func PackBytes(cfg PackConfig, n int64) int64 {
	window := cfg.Window
	if window == 0 {
		window = MaxWindowRows
	}
	const atWork = 96 * MaxWindowPieces
	perLength := int64(4 + 1)
	if cfg.Cost != nil {
		perLength += 8
	}
	return 20*keptPieces + keptTables*24*min(n/max(window, 1)+2, maxPackWindows) + 2*atWork + 2*perLength*cfg.Length
}

// Config returns what documents are packed by, without the costs.
func (k *Pack) Config() PackConfig { return k.cfg }

// Prepare computes the table of a plan's epoch, in pieces of some milliseconds through
// turn, so that New finds the table. It takes some ten nanoseconds for each document, in
// addition to the order's time. It fails with a turn's error, and where New would fail. If
// the order has each document once, that happens in each epoch or in none.
func (k *Pack) Prepare(cfg Config, turn func(piece func() error) error) error {
	_, n, err := cfg.samples()
	if err != nil {
		return err
	}
	_, err = k.table(&cfg, n, turn)
	return err
}

// atOnce takes no turns.
func atOnce(piece func() error) error { return piece() }

// table returns the table of a plan's epoch, and makes it where it is not kept.
func (k *Pack) table(cfg *Config, n int64, turn func(piece func() error) error) (*packTable, error) {
	if cfg.Buckets != nil {
		return nil, fmt.Errorf("%w: sequences of documents, and batches by length", schema.ErrInvalid)
	}
	if err := k.use(cfg, n); err != nil {
		return nil, err
	}
	epoch := cfg.Epoch
	if !cfg.Shuffle {
		epoch = 0
	}
	if t := k.made(epoch); t != nil {
		return t, nil
	}
	k.making.Lock()
	defer k.making.Unlock()
	if t := k.made(epoch); t != nil {
		return t, nil
	}
	p, err := newDocuments(cfg, n)
	if err != nil {
		return nil, err
	}
	t, err := k.count(p, turn)
	if err != nil {
		return nil, err
	}
	t.epoch = epoch
	k.mu.Lock()
	defer k.mu.Unlock()
	k.uses++
	t.used = k.uses
	if len(k.tables) == keptTables {
		oldest := 0
		for i, kept := range k.tables {
			if kept.used < k.tables[oldest].used {
				oldest = i
			}
		}
		k.tables[oldest] = t
	} else {
		k.tables = append(k.tables, t)
	}
	return t, nil
}

// use checks that a Pack is used for one plan's epochs alone.
func (k *Pack) use(cfg *Config, n int64) error {
	of := packedPlan{batch: cfg.Batch, shuffle: cfg.Shuffle, seed: cfg.Seed, blockRows: cfg.BlockRows,
		clusterBlocks: cfg.ClusterBlocks, mix: cfg.Mix, weights: cfg.Weights, balance: cfg.Balance,
		replacement: cfg.Replacement}
	if cfg.Mix == nil { // whose last epoch may be shorter
		of.n = n
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.of == nil {
		k.of = &of
	}
	if *k.of != of {
		return fmt.Errorf("%w: sequences that were packed for another plan", schema.ErrInvalid)
	}
	return nil
}

// made returns the table of an epoch; nil if it is not kept.
func (k *Pack) made(epoch uint64) *packTable {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.tables {
		if t.epoch == epoch {
			k.uses++
			t.used = k.uses
			return t
		}
	}
	return nil
}

// readPiece is how many documents' lengths are read at a turn.
const readPiece = 1 << 14

// count packs all windows of an epoch, to find how much is in each.
func (k *Pack) count(p *Plan, turn func(piece func() error) error) (*packTable, error) {
	pk := &packer{cfg: &k.cfg}
	t := &packTable{docs: []int64{0}, sequences: []int64{0}, pieces: []int64{0}, sum: Packing{Documents: p.n}}
	var high, low uint64 // what all sequences cost
	var held int64       // pieces that the documents so far become at most
	for start := int64(0); start < p.n; {
		pk.begin()
		end, stop := start, false
		for limit := min(start+k.cfg.Window, p.n); end < limit && !stop; {
			err := turn(func() error {
				added := k.read(p, pk, start, end, min(end+readPiece, limit))
				stop, end = added < min(end+readPiece, limit), added
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		if end == start {
			pos := p.plain(start)
			return nil, &schema.FieldError{Field: "pack.length", Got: strconv.FormatInt(k.cfg.Length, 10), Want: fmt.Sprintf(
				"so much that no document has more than %d pieces: that at position %d has %d tokens", MaxWindowPieces, pos,
				k.length(pos))}
		}
		if pk.long != absent {
			return nil, k.tooLong(p.plain(start + int64(pk.long)))
		}
		err := turn(func() error {
			pk.pack()
			if k.cost != nil {
				for i := range pk.items {
					var carry uint64
					low, carry = bits.Add64(low, k.cost[pk.items[i].length], 0)
					high += carry
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		t.add(end, pk)
		start = end
		// If a window ends early, it and the next one hold more than MaxWindowPieces together. So the number of windows
		// is bounded, and a request that is refused is refused in each epoch.
		if held += pk.held; p.n/k.cfg.Window+2*(held/MaxWindowPieces)+2 > maxPackWindows {
			return nil, &schema.FieldError{Field: "pack.window", Got: strconv.FormatInt(k.cfg.Window, 10), Want: fmt.Sprintf(
				"a larger number, or a larger pack.length, so that the %d documents of an epoch have at most %d windows", p.n,
				maxPackWindows)}
		}
	}
	t.sum.Windows = int64(len(t.docs) - 1)
	if t.sum.Sequences > 0 {
		t.level, _ = bits.Div64(high, low, uint64(t.sum.Sequences))
	}
	return t, nil
}

// read adds documents of a window that begins at start to a packer, until one does not fit,
// and returns its index. It computes the positions first, so that the loads of their
// lengths, which are far apart in memory, overlap.
func (k *Pack) read(p *Plan, pk *packer, start, from, to int64) int64 {
	var found [64]int64
	for from < to {
		some := found[:min(to-from, int64(len(found)))]
		for i := range some {
			some[i] = p.plain(from + int64(i))
		}
		for i, pos := range some {
			some[i] = int64(k.length(pos))
		}
		for _, n := range some {
			if !pk.add(int32(from-start), uint32(n)) {
				return from
			}
			from++
		}
	}
	return to
}

// add adds a window that ends before a document.
func (t *packTable) add(end int64, pk *packer) {
	s := &t.sum
	s.Empty += pk.sums.Empty
	s.Long += pk.sums.Long
	s.Cut += pk.sums.Cut
	s.Tokens += pk.sums.Tokens
	s.Pieces += int64(len(pk.items))
	s.Sequences += int64(pk.count)
	t.docs = append(t.docs, end)
	t.sequences = append(t.sequences, s.Sequences)
	t.pieces = append(t.pieces, s.Pieces)
}

func (k *Pack) tooLong(pos int64) error {
	return &schema.FieldError{Field: "pack.length", Got: fmt.Sprintf("%d, and %d tokens at position %d", k.cfg.Length,
		k.length(pos), pos), Want: fmt.Sprintf("a length that all documents fit into, or pack.long: one of %s",
		schema.ShownList(longs[LongCut:]))}
}

// length is how many tokens the document at a position has.
func (k *Pack) length(pos int64) uint32 { return k.cfg.Lengths[pos] }

// packed is how the documents of a plan are packed.
type packed struct {
	*Pack
	table     *packTable
	documents *Plan // as if they were not packed
}

// newDocuments is the plan of documents that are to be packed.
func newDocuments(cfg *Config, n int64) (*Plan, error) {
	selection, _, err := cfg.samples()
	if err != nil {
		return nil, err
	}
	return &Plan{cfg: *cfg, selection: selection, n: n, rows: n, order: newOrder(cfg, n)}, nil
}

// pack packs the documents of a plan.
func (p *Plan) pack() error {
	t, err := p.cfg.Pack.table(&p.cfg, p.n, atOnce)
	if err != nil {
		return err
	}
	documents := *p
	documents.rows = p.n
	p.packed, p.sequences = &packed{p.cfg.Pack, t, &documents}, t.sum.Sequences
	return nil
}

// windowOf is which window has an index, by where windows begin.
func windowOf(starts []int64, index int64) int64 {
	return int64(sort.Search(len(starts)-1, func(w int) bool { return starts[w+1] > index }))
}

// window returns a window as it is packed. Many pieces of a window are best asked for together.
func (k *packed) window(window int64) *packedWindow {
	key := windowKey{k.table.epoch, window}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.uses++
	if w := k.kept[key]; w != nil {
		w.used = k.uses
		return w
	}
	w := k.packLocked(window)
	w.used = k.uses
	for len(k.kept) > 0 && (len(k.kept) >= maxKept || k.pieces+len(w.pieces) > keptPieces) {
		k.forgetLocked()
	}
	k.kept[key] = w
	k.pieces += len(w.pieces)
	return w
}

// forgetLocked forgets the window that was not used for longest.
func (k *Pack) forgetLocked() {
	var oldest windowKey
	least := int64(math.MaxInt64)
	for key, w := range k.kept {
		if w.used < least {
			oldest, least = key, w.used
		}
	}
	k.pieces -= len(k.kept[oldest].pieces)
	delete(k.kept, oldest)
}

// packLocked packs a window.
func (k *packed) packLocked(window int64) *packedWindow {
	pk, t := &k.packer, k.table
	start, end := t.docs[window], t.docs[window+1]
	pk.begin()
	k.read(k.documents, pk, start, start, end)
	pk.pack()
	pk.number()
	sequences := k.arrange(pk, window)
	w := &packedWindow{pieces: make([]part, len(pk.items)), starts: make([]int32, pk.count+1)}
	places := slices.Grow(pk.numbers[:0], int(pk.count))[:pk.count] // by sequence: where its next piece goes
	clear(places)
	for _, bin := range pk.bins {
		places[bin]++
	}
	at := int32(0)
	for i, bin := range sequences {
		w.starts[i] = at
		places[bin], at = at, at+places[bin]
	}
	w.starts[pk.count] = at
	for i, bin := range pk.bins {
		w.pieces[places[bin]] = pk.items[i]
		places[bin]++
	}
	return w
}

// arrange says which sequences of a window come one after the other.
func (k *packed) arrange(pk *packer, window int64) []int32 {
	n := int64(pk.count)
	list := make([]int32, n)
	shuffle, key := k.documents.cfg.Shuffle, windowKey{k.table.epoch, window}
	if k.cost == nil {
		var perm Perm
		if shuffle {
			perm = NewPerm(uint64(n), packSeed(k.documents.cfg.Seed, uint64(window)), key.epoch)
		}
		for i := range list {
			list[i] = int32(i)
			if shuffle {
				list[i] = int32(perm.At(uint64(i)))
			}
		}
		return list
	}
	byCost := make([]uint64, n) // the cost, then the sequence
	for i, bin := range pk.bins {
		byCost[bin] += k.cost[pk.items[i].length]
	}
	for bin, cost := range byCost {
		byCost[bin] = cost<<numberBits | uint64(bin)
	}
	slices.Sort(byCost)
	var perm func(steps int64) Perm
	if shuffle {
		perm = func(steps int64) Perm {
			return NewPerm(uint64(steps), packSeed(k.documents.cfg.Seed, uint64(window)), k.table.epoch)
		}
	}
	balance(list, byCost, k.table.level, k.table.sequences[window], k.documents.cfg.Batch, perm)
	return list
}

// numberBits are those of a sequence's number, in a window.
const numberBits = 17

// balance puts the sequences of a window in order. byCost has the cost and the number of each, in order of both; before
// is how many sequences come before the window. Those that share a step with other windows' are the ones whose cost is
// nearest to a level that all windows have. The others are cut into steps of like cost, which change places by perm, if
// there is one.
func balance(list []int32, byCost []uint64, level uint64, before, batch int64, perm func(steps int64) Perm) {
	n := int64(len(list))
	head := min((batch-before%batch)%batch, n)
	tail := (n - head) % batch
	edge := head + tail
	// The sequences at the edge are adjacent in order of cost.
	i, _ := slices.BinarySearch(byCost, level<<numberBits)
	first, last := int64(i), int64(i)
	for last-first < edge {
		if last == n || first > 0 && level-byCost[first-1]>>numberBits <= byCost[last]>>numberBits-level {
			first--
		} else {
			last++
		}
	}
	edges := [2][]uint64{make([]uint64, 0, head), make([]uint64, 0, tail)}
	for i, c := range byCost[first:last] { // evenly
		at := 1
		if int64(i+1)*head/edge > int64(i)*head/edge {
			at = 0
		}
		edges[at] = append(edges[at], c)
	}
	spread(list[:head], edges[0])
	spread(list[n-tail:], edges[1])
	rest := slices.Delete(byCost, int(first), int(last))
	steps := int64(len(rest)) / batch
	var p Perm
	if perm != nil && steps > 0 {
		p = perm(steps)
	}
	for step := range steps {
		from := step
		if perm != nil {
			from = int64(p.At(uint64(step)))
		}
		spread(list[head+step*batch:][:batch], rest[from*batch:][:batch])
	}
}

// spread puts sequences, which are in order of cost, into one in which any run costs about as much as others of its
// length: halves cost the same as nearly as may be, and so do their halves, and so on.
func spread(to []int32, byCost []uint64) {
	slices.Reverse(byCost)
	halve(byCost, make([]uint64, len(byCost)))
	for i, c := range byCost {
		to[i] = int32(c & (1<<numberBits - 1))
	}
}

// halve puts sequences, sorted by falling cost, into two halves that cost about the same,
// and then halves each half. Each pair of neighbours is divided between the halves: the
// more expensive one goes into the half that has cost less so far. room is working memory
// of the same length.
func halve(list, room []uint64) {
	n := len(list)
	if n < 3 {
		return
	}
	low, high := room[:n/2], room[n/2:n]
	more := int64(0) // what the first half costs more than the second
	for i := range low {
		a, b := list[2*i], list[2*i+1]
		if more > 0 {
			a, b = b, a
		}
		low[i], high[i] = a, b
		more += int64(a>>numberBits) - int64(b>>numberBits)
	}
	if n%2 == 1 {
		high[n/2] = list[n-1]
	}
	copy(list, room)
	halve(list[:n/2], room[:n/2])
	halve(list[n/2:], room[n/2:n])
}

// packSeed is the seed by which the sequences of a window change places: another one for each window, and not that of the
// epoch's order.
func packSeed(seed, window uint64) uint64 {
	s := splitmix64(seed ^ binary.LittleEndian.Uint64([]byte("packing\x00")))
	return s.next() ^ bits.RotateLeft64((window+1)*0x9e3779b97f4a7c15, 31)
}

// checkRounds checks that a batch that is filled by going round has a number of pieces.
func (k *packed) checkRounds(batch int64) error {
	all := &k.table.sum
	if all.Sequences == 0 || batch/all.Sequences+2 < math.MaxInt64/all.Pieces {
		return nil
	}
	return &schema.FieldError{Field: "batch", Got: strconv.FormatInt(batch, 10), Want: fmt.Sprintf(
		"a number of sequences with less than 2^63 pieces: the epoch has %d in %d sequences", all.Pieces, all.Sequences)}
}

// first is the first piece of a sequence: what padding repeats are the pieces again, from the first on.
func (k *packed) first(sequence int64) int64 {
	all := k.table.sum.Sequences
	if all == 0 {
		return 0
	}
	round, sequence := sequence/all, sequence%all
	window := windowOf(k.table.sequences, sequence)
	at := sequence - k.table.sequences[window]
	first := round*k.table.sum.Pieces + k.table.pieces[window]
	if at == 0 { // which needs no look at the window
		return first
	}
	return first + int64(k.window(window).starts[at])
}

// at finds a piece: its round, window and index there.
func (k *packed) at(index int64) (round, window, at int64) {
	round, index = index/k.table.sum.Pieces, index%k.table.sum.Pieces
	window = windowOf(k.table.pieces, index)
	return round, window, index - k.table.pieces[window]
}

// sequence is which sequence has a piece.
func (k *packed) sequence(index int64) int64 {
	round, window, at := k.at(index)
	return round*k.table.sum.Sequences + k.table.sequences[window] + k.window(window).sequence(at)
}

// sequence is which sequence of the window has a piece of it.
func (w *packedWindow) sequence(at int64) int64 {
	return int64(sort.Search(len(w.starts)-1, func(s int) bool { return int64(w.starts[s+1]) > at }))
}

// document is the index, in the order of documents, of that which a piece is of.
func (k *packed) document(index int64) int64 {
	_, window, at := k.at(index)
	return k.table.docs[window] + int64(k.window(window).pieces[at].doc)
}

// next is the first piece, from an index on, of the document at a position.
func (k *packed) next(pos, from int64) (index int64, ok bool) {
	sample, ok := k.documents.selection.Index(pos)
	if !ok || !k.serves(pos) {
		return 0, false
	}
	all := k.table.sum.Pieces
	for round := from / all; ; round++ {
		if index, ok = k.nextIn(sample, max(from-round*all, 0)); ok || round*all > from {
			return round*all + index, ok
		}
	}
}

// nextIn is next without what padding repeats. Where a sample comes several times, its documents after the window of from
// are all served after from.
func (k *packed) nextIn(sample, from int64) (index int64, ok bool) {
	t := k.table
	order := k.documents.order
	doc, ok := order.next(sample, t.docs[windowOf(t.pieces, from)])
	for ok && doc < k.documents.n {
		window := windowOf(t.docs, doc)
		w := k.window(window)
		best := int64(-1)
		for ok && doc < t.docs[window+1] {
			if at := w.find(int32(doc-t.docs[window]), from-t.pieces[window]); at >= 0 && (best < 0 || at < best) {
				best = at
			}
			doc, ok = order.next(sample, doc+1)
		}
		if best >= 0 {
			return t.pieces[window] + best, true
		}
	}
	return 0, false
}

// find is the first piece, from an index on, of a document of the window; -1 if there is none.
func (w *packedWindow) find(doc int32, from int64) int64 {
	for at := max(from, 0); at < int64(len(w.pieces)); at++ {
		if w.pieces[at].doc == doc {
			return at
		}
	}
	return -1
}

// serves reports whether the document at a position has a piece.
func (k *packed) serves(pos int64) bool {
	n := k.length(pos)
	return n > 0 && (int64(n) <= k.cfg.Length || k.cfg.Long != LongDrop)
}

// about is about where the first piece is of a document and its position, less than a window off.
func (k *packed) about(pos, doc int64) (index int64, ok bool) {
	t := k.table
	if doc >= k.documents.n || !k.serves(pos) {
		return 0, false
	}
	window := windowOf(t.docs, doc)
	docs, pieces := t.docs[window+1]-t.docs[window], t.pieces[window+1]-t.pieces[window]
	return t.pieces[window] + mulDiv(doc-t.docs[window], pieces, docs), true
}

// Packed reports whether the plan's rows are sequences, and its indices those of pieces.
func (p *Plan) Packed() bool { return p.packed != nil }

// Packing says what the documents of the epoch have become. ok is false where they are not packed.
func (p *Plan) Packing() (sum Packing, ok bool) {
	if p.packed == nil {
		return Packing{}, false
	}
	return p.packed.table.sum, true
}

// Sequences is the number of rows that streams have in the epoch, over all ranks: Rows, where nothing is packed.
func (p *Plan) Sequences() int64 { return p.sequences }

// ShareSequences returns the sequences [lo, hi) of the epoch that a rank serves in a step: what Share has the pieces of,
// and just the same where nothing is packed.
func (p *Plan) ShareSequences(step int64, rank int) (lo, hi int64) {
	if step < 0 || step >= p.steps || rank < 0 || rank >= p.cfg.World {
		return 0, 0
	}
	start, size := p.batch(step)
	world := int64(p.cfg.World)
	return start + mulDiv(int64(rank), size, world), start + mulDiv(int64(rank)+1, size, world)
}

// First returns the index of a sequence's first piece. That of Sequences() is Rows(). It panics unless 0 <= sequence <=
// Sequences().
func (p *Plan) First(sequence int64) int64 {
	if sequence < 0 || sequence > p.sequences {
		panic(fmt.Sprintf("plan: sequence %d in an epoch of %d", sequence, p.sequences))
	}
	if p.packed == nil {
		return sequence
	}
	return p.packed.first(sequence)
}

// Sequence returns which sequence has the piece at an index: the inverse of First. It panics unless 0 <= index < Rows().
func (p *Plan) Sequence(index int64) int64 {
	p.check(index)
	if p.packed == nil {
		return index
	}
	return p.packed.sequence(index)
}

// AppendPieces appends the pieces at the indices [lo, hi) to a list, with one look at each window. It panics unless the
// plan is packed and 0 <= lo <= hi <= Rows().
func (p *Plan) AppendPieces(to []Piece, lo, hi int64) []Piece {
	if p.packed == nil || lo < 0 || lo > hi || hi > p.rows {
		panic(fmt.Sprintf("plan: pieces [%d, %d) of %d", lo, hi, p.rows))
	}
	k := p.packed
	for lo < hi {
		round, window, at := k.at(lo)
		w := k.window(window)
		end := min(at+hi-lo, int64(len(w.pieces)))
		lo += end - at
		s := w.sequence(at)
		place := int64(0)
		for i := int64(w.starts[s]); i < end; i++ {
			if i == int64(w.starts[s+1]) {
				s, place = s+1, 0
			}
			d := w.pieces[i]
			if i >= at {
				to = append(to, Piece{Position: k.documents.plain(k.table.docs[window] + int64(d.doc)),
					Sequence: round*k.table.sum.Sequences + k.table.sequences[window] + s, At: place, From: int64(d.from),
					Length: int64(d.length)})
			}
			place += int64(d.length)
		}
	}
	return to
}

// Imbalance is how much the cost of rows differs between the ranks of a step: the cost of
// the costliest rank, divided by the mean of all ranks. It is computed over at most most
// steps that are spread evenly over the epoch. If sequences have no costs, their tokens
// count. ok is false if nothing is packed and samples have no costs, or if no step has a
// row for each rank.
func (p *Plan) Imbalance(most int64) (ratio float64, ok bool) {
	if p.packed == nil && (p.cfg.Buckets == nil || p.cfg.Buckets.costs == nil) {
		return 0, false
	}
	steps := min(most, p.steps)
	var costliest, all float64
	var list []Piece
	for i := range steps {
		step := i * p.steps / steps
		if _, size := p.batch(step); size < int64(p.cfg.World) {
			continue
		}
		most := 0.0
		for rank := range p.cfg.World {
			lo, hi := p.Share(step, rank)
			sum := 0.0
			if p.packed == nil {
				for i := lo; i < hi; i++ {
					sum += p.cfg.Buckets.costs.of(p.Position(i))
				}
			} else {
				list = p.AppendPieces(list[:0], lo, hi)
				for _, d := range list {
					sum += p.packed.costOf(d.Length)
				}
			}
			most = max(most, sum)
			all += sum
		}
		costliest += most
	}
	if all == 0 {
		return 0, false
	}
	return costliest * float64(p.cfg.World) / all, true
}

// costOf is the cost of a piece with that many tokens.
func (k *Pack) costOf(length int64) float64 {
	if k.cost == nil {
		return float64(length)
	}
	return float64(k.cost[length])
}
