package schema

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// Limits of mixtures.
const (
	// MaxSources bounds the sources of a mixture, counting the leaves of nested ones.
	MaxSources = 64
	// MaxNesting bounds the depth of nested sources.
	MaxNesting = 4
	// MaxChanges bounds the entries of a schedule, and MaxSegments the resulting changes
	// of weights.
	MaxChanges  = 256
	MaxSegments = 256
	// MaxRamp bounds the pieces of a gradual change, and DefaultRamp is their default
	// number.
	MaxRamp     = 64
	DefaultRamp = 16
	// MaxEpochSize bounds the rows of an epoch whose size does not follow from its
	// samples.
	MaxEpochSize = 1<<62 - 1
	// MaxRepeat bounds how often an epoch contains a source.
	MaxRepeat = 1 << 20
	// MaxSourceOperatorsBytes bounds the JSON of the operators of all sources together.
	MaxSourceOperatorsBytes = 64 << 10
)

// Values of Mixture.Pick, Mixture.By and Source.End.
const (
	PickRandom    = "random"     // rows of sources alternate at random
	PickExact     = "exact"      // each batch is as close to the weights as whole rows allow
	PickOneSource = "one_source" // each batch has one source; batches alternate

	BySamples = "samples" // weights count samples

	EndReshuffle = "reshuffle" // the source's next epoch begins
	EndStop      = "stop"      // the epoch ends with the source
	EndDrop      = "drop"      // the other sources continue without it
)

// Mixture describes an epoch that is sampled from several sources.
type Mixture struct {
	Sources []MixtureSource `json:"sources"`
	// EpochSize is the number of rows of an epoch. 0 means as many as the sources have
	// or, with Repeat and Choose, as these specify.
	EpochSize int64 `json:"epoch_size,omitempty"`
	// By is what weights count: BySamples, or a metadata column of numbers whose sums
	// follow the weights. "" means BySamples.
	By   string `json:"by,omitempty"`
	Pick string `json:"pick,omitempty"` // "": PickRandom
	// Schedule changes the weights, in ascending order of steps.
	Schedule []MixtureChange `json:"schedule,omitempty"`
	// Carried is what was served before the mixture begins; nil for nothing.
	Carried *MixtureCarried `json:"carried,omitempty"`
	// Run names the training run that uses this mixture, so that its weights can be
	// changed from outside meanwhile. Steered are these changes, in the order in which
	// they were made. The server fills them in.
	Run     string          `json:"run,omitempty"`
	Steered []MixtureChange `json:"steered,omitempty"`
}

// MixtureSource is one source of a mixture: a dataset or a part of one, or nested sources
// that share its weight by their own weights.
type MixtureSource struct {
	// Name identifies the source in schedules, reports and lineage, and is part of the
	// seed of its shuffle. "" means Dataset, and Split if there is one.
	Name     string          `json:"name,omitempty"`
	Dataset  string          `json:"dataset,omitempty"`
	Snapshot int64           `json:"snapshot,omitempty"`
	Tag      string          `json:"tag,omitempty" text:"snapshot"`
	Split    string          `json:"split,omitempty"`
	Where    string          `json:"where,omitempty"`
	Sources  []MixtureSource `json:"sources,omitempty"`
	// Weight, from 0, is relative to the sum of all weights. Repeat is how often an epoch
	// has all samples, Choose how many samples it has. Either all sources of a mixture
	// have weights, or none has.
	Weight *float64 `json:"weight,omitempty"`
	Repeat float64  `json:"repeat,omitempty"`
	Choose int64    `json:"choose,omitempty"`
	End    string   `json:"end,omitempty"` // "": EndReshuffle
	// Operators apply to the source's blob columns before the mixture's own operators;
	// nil for none.
	Operators Operators `json:"operators,omitempty"`
	// Within is the part of the dataset that the caller may see. The server sets it: see
	// Request.Within.
	Within *Restriction `json:"-"`
}

// MixtureChange sets weights of sources from a step on.
type MixtureChange struct {
	// Step is counted over all epochs, from 0.
	Step int64 `json:"step"`
	// Weights are by name. Sources that it does not name keep theirs.
	Weights map[string]float64 `json:"weights"`
	// Over is the number of steps in which the weights change gradually; 0: at once. They
	// change in Pieces equal steps; 0 means DefaultRamp, or Over if that is less.
	Over   int64 `json:"over,omitempty"`
	Pieces int64 `json:"pieces,omitempty"`
}

// MixtureCarried describes what was served before a mixture begins.
type MixtureCarried struct {
	// Epoch is the epoch that the mixture begins with.
	Epoch uint64 `json:"epoch"`
	// Rows is how many rows of each source were served before it, in the order of the
	// sources.
	Rows []int64 `json:"rows"`
}

// Called is the source's name, or its default.
func (s *MixtureSource) Called() string {
	if s.Name != "" || s.Split == "" {
		return cmp.Or(s.Name, s.Dataset)
	}
	return s.Dataset + "." + s.Split
}

// Leaves lists the sources that have a dataset, with nested ones in the place of their
// parent.
func (m *Mixture) Leaves() (list []MixtureSource) {
	var add func([]MixtureSource)
	add = func(sources []MixtureSource) {
		for i := range sources {
			if sources[i].Sources != nil {
				add(sources[i].Sources)
			} else {
				list = append(list, sources[i])
			}
		}
	}
	add(m.Sources)
	return list
}

// Operated reports whether a source has operators of its own.
func (m *Mixture) Operated() bool {
	return m != nil && slices.ContainsFunc(m.Leaves(), func(s MixtureSource) bool { return s.Operators != nil })
}

// Weighted reports whether sources have weights, rather than numbers of rows in an epoch.
func (m *Mixture) Weighted() bool { return m.Sources[0].Weight != nil }

// Changes are the effective changes of weights: each steered change replaces all entries
// of the schedule from its step on.
func (m *Mixture) Changes() []MixtureChange {
	list := m.Schedule
	for _, c := range m.Steered {
		kept := slices.IndexFunc(list, func(old MixtureChange) bool { return old.Step >= c.Step })
		if kept < 0 {
			kept = len(list)
		}
		list = append(slices.Clip(list[:kept]), c)
	}
	return list
}

// Steer is the mixture with one more change from outside. An error is a FieldError.
func (m *Mixture) Steer(c MixtureChange) (*Mixture, error) {
	steered := *m
	steered.Steered = append(slices.Clip(m.Steered), c)
	return &steered, steered.checkAll()
}

// Steerable is the first step, not before the given one, at which weights may be changed
// from outside. During a gradual change they may not.
func (m *Mixture) Steerable(step int64) int64 {
	for _, c := range m.Changes() {
		if c.Step < step {
			step = max(step, c.Step+c.Over)
		}
	}
	return step
}

// Unsteered is the mixture as it was requested, without changes from outside.
func (m *Mixture) Unsteered() *Mixture {
	if m == nil || m.Steered == nil {
		return m
	}
	asked := *m
	asked.Steered = nil
	return &asked
}

// MixtureShares are the shares of the leaf sources from a step on, in the order of
// Leaves.
type MixtureShares struct {
	Step   int64
	Shares []*big.Rat
}

// Shares are the exact shares of the leaf sources, from the beginning and from each step
// at which they change. The sources have weights. Nested sources share the weight of
// their parent. Gradual changes are cut into their pieces, each with the weights of its
// middle.
//
// Rational numbers are used because plans must be equal on all machines, which sums of
// floats are not.
func (m *Mixture) Shares() (list []MixtureShares) {
	now := map[string]float64{}
	var names func([]MixtureSource)
	names = func(sources []MixtureSource) {
		for i := range sources {
			now[sources[i].Called()] = *sources[i].Weight
			names(sources[i].Sources)
		}
	}
	names(m.Sources)
	exact := map[string]*big.Rat{}
	for name, w := range now {
		exact[name] = decimal(w)
	}
	list = append(list, MixtureShares{0, m.shares(exact)})
	add := func(step int64) {
		shares := m.shares(exact)
		if last := &list[len(list)-1]; last.Step == step {
			last.Shares = shares
			return
		}
		list = append(list, MixtureShares{step, shares})
	}
	for _, c := range m.Changes() {
		before := maps.Clone(exact)
		pieces := c.pieces()
		for i := range pieces {
			for name, w := range c.Weights {
				part := big.NewRat(2*i+1, 2*pieces)
				way := new(big.Rat).Sub(decimal(w), before[name])
				exact[name] = way.Add(before[name], way.Mul(way, part))
			}
			add(c.Step + c.Over/pieces*i + c.Over%pieces*i/pieces)
		}
		for name, w := range c.Weights {
			exact[name] = decimal(w)
		}
		add(c.Step + c.Over)
	}
	return list
}

// pieces is the number of pieces of a gradual change before it ends; 0 for a change at
// once.
func (c *MixtureChange) pieces() int64 {
	if c.Over == 0 {
		return 0
	}
	return min(cmp.Or(c.Pieces, DefaultRamp), c.Over)
}

// decimal is a number exactly as its shortest decimal form, so 0.1 is 1/10.
func decimal(w float64) *big.Rat {
	r, ok := new(big.Rat).SetString(strconv.FormatFloat(w, 'g', -1, 64))
	if !ok {
		panic("schema: a weight that is no number") // it was checked
	}
	return r
}

// shares are the shares of the leaves, from the weights of all sources.
func (m *Mixture) shares(weights map[string]*big.Rat) (list []*big.Rat) {
	var add func(sources []MixtureSource, of *big.Rat)
	add = func(sources []MixtureSource, of *big.Rat) {
		sum := new(big.Rat)
		for i := range sources {
			sum.Add(sum, weights[sources[i].Called()])
		}
		for i := range sources {
			share := new(big.Rat)
			if sum.Sign() > 0 {
				share.Quo(weights[sources[i].Called()], sum)
			}
			share.Mul(share, of)
			if sources[i].Sources != nil {
				add(sources[i].Sources, share)
			} else {
				list = append(list, share)
			}
		}
	}
	add(m.Sources, big.NewRat(1, 1))
	return list
}

// checkMixture checks Mixture, which is set, and the fields that cannot go with it.
func (r *Request) checkMixture() error {
	for _, f := range []struct {
		name  string
		given bool
		where string
	}{
		{"dataset", r.Dataset != "", "that of each source, in mixture.sources"},
		{"snapshot", r.Snapshot != 0, "that of each source, in mixture.sources"},
		{"tag", r.Tag != "", "that of each source, in mixture.sources"},
		{"split", r.Split != "", "that of each source, in mixture.sources"},
		{"where", r.Where != "", "that of each source, in mixture.sources"},
		{"selection", r.Selection != nil, "it left out"},
		{"bucket_by_length", r.BucketByLength != nil, "it left out"},
		{"sample", r.Sample != nil, "it left out"},
		{"assign", r.Assign == AssignLocal, strconv.Quote(AssignPlan)},
		{"layout", r.Layout == LayoutHuggingFace && r.Mixture.Operated(), "it left out, or operators in no source"},
	} {
		if f.given {
			return &FieldError{Field: f.name, Got: "it beside mixture", Want: f.where}
		}
	}
	return r.Mixture.checkAll()
}

// checkAll checks each field, and then the fields together.
func (m *Mixture) checkAll() error {
	if err := checkAll(m); err != nil {
		return err
	}
	kinds := mixtureKinds{names: map[string]string{}}
	if err := kinds.check("mixture.sources", m.Sources, 1); err != nil {
		return err
	}
	if kinds.leaves > MaxSources {
		return &FieldError{Field: "mixture.sources", Got: fmt.Sprintf("%d sources", kinds.leaves),
			Want: fmt.Sprintf("1 to %d, those of sources counted one by one", MaxSources)}
	}
	bytes := 0
	for _, s := range m.Leaves() {
		if s.Operators != nil {
			bytes += len(marshal(s.Operators))
		}
	}
	if bytes > MaxSourceOperatorsBytes {
		return &FieldError{Field: "mixture.sources", Got: fmt.Sprintf("operators of %d bytes in all", bytes),
			Want: fmt.Sprintf("at most %d, as each ticket repeats them", MaxSourceOperatorsBytes)}
	}
	if !m.Weighted() {
		switch {
		case m.By != "" && m.By != BySamples:
			return &FieldError{Field: "mixture.by", Got: Quote(m.By) + " with repeat and choose",
				Want: "it left out, or weights"}
		case m.Schedule != nil:
			return &FieldError{Field: "mixture.schedule", Got: "it with repeat and choose", Want: "it left out, or weights"}
		case m.Run != "":
			return &FieldError{Field: "mixture.run", Got: Quote(m.Run) + " with repeat and choose",
				Want: "it left out, or weights"}
		}
		return m.checkCarried(kinds.leaves)
	}
	if err := m.checkSchedule(&kinds); err != nil {
		return err
	}
	if err := m.checkRun(&kinds); err != nil {
		return err
	}
	return m.checkCarried(kinds.leaves)
}

// checkCarried checks Carried against the number of leaf sources.
func (m *Mixture) checkCarried(leaves int) error {
	c := m.Carried
	if c == nil {
		return nil
	}
	if len(c.Rows) != leaves {
		return &FieldError{Field: "mixture.carried.rows", Got: fmt.Sprintf("%d numbers", len(c.Rows)),
			Want: fmt.Sprintf("one for each of the %d sources, those of sources counted one by one", leaves)}
	}
	for j, n := range c.Rows {
		if err := checkRange(fmt.Sprintf("mixture.carried.rows[%d]", j), n, 0, MaxEpochSize); err != nil {
			return err
		}
	}
	if c.Epoch > MaxEpochSize {
		return &FieldError{Field: "mixture.carried.epoch", Got: strconv.FormatUint(c.Epoch, 10), Want: "less than 2^62"}
	}
	if m.EpochSize == 0 {
		return &FieldError{Field: "mixture.epoch_size", Got: "none with carried", Want: "the rows that an epoch has"}
	}
	if most := uint64(MaxEpochSize / m.EpochSize); m.Run != "" && c.Epoch > most { // its steps are counted from epoch 0 on
		return &FieldError{Field: "mixture.carried.epoch", Got: strconv.FormatUint(c.Epoch, 10),
			Want: fmt.Sprintf("at most %d with run, as an epoch has %d rows", most, m.EpochSize)}
	}
	return nil
}

// checkSchedule checks Schedule, and that at any time a source has a weight above 0.
func (m *Mixture) checkSchedule(kinds *mixtureKinds) error {
	if err := kinds.checkChanges("mixture.schedule", m.Schedule); err != nil {
		return err
	}
	for i, s := range (&Mixture{Sources: m.Sources, Schedule: m.Schedule}).Shares() {
		if !slices.ContainsFunc(s.Shares, func(r *big.Rat) bool { return r.Sign() > 0 }) {
			field := "mixture.sources"
			if i > 0 {
				field = "mixture.schedule"
			}
			return noWeights(field, s.Step)
		}
	}
	return nil
}

// noWeights is the error for weights that are all 0.
func noWeights(field string, step int64) error {
	return &FieldError{Field: field, Got: fmt.Sprintf("weights that are all 0 from step %d on", step),
		Want: "one source or more with a weight above 0"}
}

// checkRun checks Run and the changes from outside.
func (m *Mixture) checkRun(kinds *mixtureKinds) error {
	if m.Run == "" {
		if m.Steered != nil {
			return &FieldError{Field: "mixture.steered", Got: "it without run",
				Want: "it left out: schedule has changes of weights"}
		}
		return nil
	}
	for _, s := range m.Leaves() {
		if s.End == EndStop { // its epoch's length would depend on the weights
			return &FieldError{Field: "mixture.run",
				Got: fmt.Sprintf("%s with end %q of source %q", Quote(m.Run), s.End, s.Called()),
				Want: fmt.Sprintf("%q or %q: epochs are to be as long whatever the weights are",
					EndReshuffle, EndDrop)}
		}
	}
	if m.Steered == nil {
		return nil
	}
	// Each change is checked against the changes at the time when it was made: a later
	// one removes some of them.
	at := Mixture{Sources: m.Sources, Schedule: m.Schedule}
	for i := range m.Steered {
		c, field := &m.Steered[i], fmt.Sprintf("mixture.steered[%d]", i)
		if err := kinds.checkChange(field, c, 0); err != nil {
			return err
		}
		for _, old := range at.Changes() {
			if end := old.Step + old.Over; old.Step < c.Step && c.Step < end {
				return &FieldError{Field: field + ".step",
					Got:  fmt.Sprintf("%d, within the change from step %d to %d", c.Step, old.Step, end),
					Want: fmt.Sprintf("%d or more", end)}
			}
		}
		at.Steered = m.Steered[:i+1]
	}
	if err := kinds.checkChanges("mixture.steered", at.Changes()); err != nil {
		return err
	}
	for _, s := range at.Shares() {
		if !slices.ContainsFunc(s.Shares, func(r *big.Rat) bool { return r.Sign() > 0 }) {
			return noWeights("mixture.steered", s.Step)
		}
	}
	return nil
}

// checkChanges checks changes, which must be in ascending order of steps.
func (k *mixtureKinds) checkChanges(list string, changes []MixtureChange) error {
	var end, segments int64
	for i := range changes {
		c, field := &changes[i], fmt.Sprintf("%s[%d]", list, i)
		if err := k.checkChange(field, c, end); err != nil {
			return err
		}
		end = c.Step + max(c.Over, 1)
		if segments += c.pieces() + 1; segments > MaxSegments {
			return &FieldError{Field: field, Got: fmt.Sprintf("%d changes so far, with the pieces of ramps", segments),
				Want: fmt.Sprintf("at most %d", MaxSegments)}
		}
	}
	return nil
}

// checkChange checks a change that may begin at step from or later.
func (k *mixtureKinds) checkChange(field string, c *MixtureChange, from int64) error {
	if err := checkRange(field+".step", c.Step, from, MaxEpochSize); err != nil {
		return err
	}
	if err := checkRange(field+".over", c.Over, 0, MaxEpochSize-c.Step); err != nil {
		return err
	}
	if most := min(MaxRamp, c.Over); c.Pieces < 0 || c.Pieces > most {
		return &FieldError{Field: field + ".pieces", Got: strconv.FormatInt(c.Pieces, 10),
			Want: fmt.Sprintf("at most %d, and no more than over, which is %d", MaxRamp, c.Over)}
	}
	if len(c.Weights) == 0 {
		return &FieldError{Field: field + ".weights", Got: "none", Want: "a weight or more, by the names of sources"}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Weights)) {
		if k.names[name] == "" {
			return unknownField(field+".weights.", name, slices.Sorted(maps.Keys(k.names)))
		}
		if err := checkWeight(field+".weights."+Shown(name), c.Weights[name]); err != nil {
			return err
		}
	}
	return nil
}

// checkWeight bounds a weight, so that exact arithmetic stays small.
func checkWeight(field string, w float64) error {
	if !(w == 0 || w >= 1e-12 && w <= 1e12) {
		return &FieldError{Field: field, Got: strconv.FormatFloat(w, 'g', -1, 64), Want: "0, or a number from 1e-12 to 1e12"}
	}
	return nil
}

// mixtureKinds is what is known of the sources while they are checked.
type mixtureKinds struct {
	names  map[string]string // names of sources with their paths
	leaves int
	weight bool // of the first source: all others have one too, or none has
}

// check checks sources at a depth, and counts the leaves.
func (k *mixtureKinds) check(field string, sources []MixtureSource, depth int) error {
	if len(sources) == 0 || depth > MaxNesting {
		return &FieldError{Field: field, Got: fmt.Sprintf("%d sources, %d deep", len(sources), depth),
			Want: fmt.Sprintf("1 or more, at most %d deep", MaxNesting)}
	}
	for i := range sources {
		s, at := &sources[i], fmt.Sprintf("%s[%d]", field, i)
		if err := s.checkAll(at); err != nil {
			return err
		}
		if len(k.names) == 0 {
			k.weight = s.Weight != nil
		}
		if k.weight != (s.Weight != nil) {
			return &FieldError{Field: at, Got: "weight beside repeat or choose of other sources",
				Want: "weight in all sources, or in none"}
		}
		name := s.Called()
		if s.Sources != nil && s.Name == "" {
			return &FieldError{Field: at + ".name", Got: "none", Want: "one, as it has sources and no dataset"}
		}
		if other := k.names[name]; other != "" {
			return &FieldError{Field: at + ".name", Got: Quote(name) + ", as " + other + " has",
				Want: "another one for each source"}
		}
		k.names[name] = at
		if s.Sources == nil {
			k.leaves++
			continue
		}
		if err := k.check(at+".sources", s.Sources, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// checkAll checks a source at a path.
func (s *MixtureSource) checkAll(at string) error {
	return within(at+".", cmp.Or(checkAll(s), s.checkTogether()))
}

// within prefixes the field of an error with its path.
func within(prefix string, err error) error {
	if f, ok := errors.AsType[*FieldError](err); ok {
		return &FieldError{Field: prefix + f.Field, Got: f.Got, Want: f.Want}
	}
	return err
}

// checkTogether checks the fields of a source that exclude each other.
func (s *MixtureSource) checkTogether() error {
	given := 0
	for _, is := range []bool{s.Weight != nil, s.Repeat != 0, s.Choose != 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		return &FieldError{Field: "weight", Got: fmt.Sprintf("%d of weight, repeat and choose", given), Want: "one of them"}
	}
	if s.Sources == nil {
		if s.Dataset == "" {
			return &FieldError{Field: "dataset", Got: "none", Want: "a dataset, or sources"}
		}
		return nil
	}
	for _, f := range []struct {
		name  string
		given bool
	}{{"dataset", s.Dataset != ""}, {"snapshot", s.Snapshot != 0}, {"tag", s.Tag != ""}, {"split", s.Split != ""},
		{"where", s.Where != ""}, {"repeat", s.Repeat != 0}, {"choose", s.Choose != 0}, {"end", s.End != ""},
		{"operators", s.Operators != nil}} {
		if f.given {
			return &FieldError{Field: f.name, Got: "it beside sources", Want: "it left out, or in each of them"}
		}
	}
	return nil
}

// check implements checker.
func (c *MixtureChange) check(field string) error {
	switch field {
	case "over":
		return checkRange(field, c.Over, 1, MaxEpochSize)
	case "pieces":
		return checkRange(field, c.Pieces, 1, MaxRamp)
	}
	return nil
}

// check implements checker.
func (s *MixtureSource) check(field string) error {
	switch field {
	case "name":
		return CheckName(field, s.Name)
	case "dataset":
		return CheckName(field, s.Dataset)
	case "snapshot":
		return checkRange(field, s.Snapshot, 0, math.MaxInt64)
	case "tag":
		return checkSnapshotOrTag(s.Snapshot, s.Tag)
	case "split":
		return CheckName(field, s.Split)
	case "where":
		return checkWhere(s.Where)
	case "weight":
		return checkWeight(field, *s.Weight)
	case "repeat":
		if !(s.Repeat >= 1e-12 && s.Repeat <= MaxRepeat) {
			return &FieldError{Field: field, Got: strconv.FormatFloat(s.Repeat, 'g', -1, 64),
				Want: fmt.Sprintf("a number above 0, from 1e-12 to %d", MaxRepeat)}
		}
	case "choose":
		return checkRange(field, s.Choose, 1, MaxEpochSize)
	case "end":
		return checkOneOf(field, s.End, EndReshuffle, EndStop, EndDrop)
	case "operators":
		if names := s.Operators.Computed(); len(names) > 0 {
			return &FieldError{Field: "operators." + Shown(names[0]), Got: "what makes a new column",
				Want: "steps for a column of bytes; new columns are made by the operators of the mixture"}
		}
		return s.Operators.check()
	}
	return nil
}

// check implements checker.
func (m *Mixture) check(field string) error {
	path := "mixture." + field
	switch field {
	case "epoch_size":
		return checkRange(path, m.EpochSize, 1, MaxEpochSize)
	case "by":
		if strings.TrimSpace(m.By) == "" || len(m.By) > MaxNameLen {
			return &FieldError{Field: path, Got: Quote(m.By),
				Want: strconv.Quote(BySamples) + ", or a metadata column of numbers"}
		}
	case "pick":
		return checkOneOf(path, m.Pick, PickRandom, PickExact, PickOneSource)
	case "schedule":
		return checkLength(path, len(m.Schedule))
	case "steered":
		return checkLength(path, len(m.Steered))
	case "run":
		return CheckName(path, m.Run)
	}
	return nil
}

// checkLength bounds a list of changes.
func checkLength(path string, n int) error {
	if n == 0 || n > MaxChanges {
		return &FieldError{Field: path, Got: fmt.Sprintf("%d changes", n), Want: fmt.Sprintf("1 to %d", MaxChanges)}
	}
	return nil
}
