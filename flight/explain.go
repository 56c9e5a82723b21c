package flight

import (
	"context"
	"fmt"
	"math"
	"math/bits"
	"time"

	"bowstring/fetch"
	"bowstring/fetch/predict"
	"bowstring/flight/catalog"
	"bowstring/flight/policy"
	"bowstring/schema"
)

// explainRequest is the body of the action explain: a request, and what is known of how it
// will be used.
type explainRequest struct {
	schema.Request
	PaceMS      float64 `json:"pace_ms"`
	Epochs      int64   `json:"epochs"`
	Nodes       int64   `json:"nodes"`
	CacheBytes  *int64  `json:"cache_bytes"`
	WindowBytes int64   `json:"window_bytes"`
	ObserveMS   *int64  `json:"look_ms"`
	// Step is a step of a mixture, counted over all epochs. The answer says which part of
	// each source was seen before it.
	Step  *int64       `json:"step"`
	Rates *fetch.Rates `json:"rates"`
}

const (
	// Bounds of the fields of a request.
	maxPaceMS = 24 * 3600 * 1000
	maxEpochs = 1<<31 - 1
	maxNodes  = 65536
	// The default and the bound of look_ms, in milliseconds. The call lasts at least that
	// long.
	defaultObserveMS = 1000
	maxObserveMS     = 10_000
	partsShare       = 0.15 // relative difference from which Parted is set

	firstEpoch, laterEpoch = "first", "later" // values of Running.Epoch
)

// parseExplain reads and checks the body of the action. ObserveMS is set afterwards.
func parseExplain(b []byte) (*explainRequest, error) {
	r := &explainRequest{}
	if err := schema.DecodeJSON("body", b, r); err != nil {
		return nil, err
	}
	req, err := r.Checked()
	if err != nil {
		return nil, err
	}
	r.Request = req
	if r.PaceMS > maxPaceMS {
		return nil, &schema.FieldError{Field: "pace_ms", Got: fmt.Sprint(r.PaceMS),
			Want: fmt.Sprintf("milliseconds that the consumers take for a step, at most %d", maxPaceMS)}
	}
	observe := int64(defaultObserveMS)
	if r.ObserveMS != nil {
		observe = *r.ObserveMS
	}
	r.ObserveMS = &observe
	for _, f := range []struct {
		name    string
		n, most int64
	}{{"epochs", r.Epochs, maxEpochs}, {"nodes", r.Nodes, maxNodes}, {"window_bytes", r.WindowBytes, 1 << 50},
		{"look_ms", observe, maxObserveMS}, {"step", stepOf(r), 1 << 62}} {
		if f.n > f.most {
			return nil, &schema.FieldError{Field: f.name, Got: fmt.Sprint(f.n), Want: fmt.Sprintf("at most %d", f.most)}
		}
	}
	if r.Rates != nil {
		return r, r.Rates.Check("rates.")
	}
	return r, nil
}

// stepOf returns the step for the check of its bound; 0 if there is none.
func stepOf(r *explainRequest) int64 {
	if r.Step == nil {
		return 0
	}
	return *r.Step
}

// ExplainedSource is a source of a mixture.
type ExplainedSource struct {
	source
	Samples int64   `json:"samples"` // selected samples
	Rows    int64   `json:"rows"`    // its rows in an epoch
	Share   float64 `json:"share"`   // Rows as a fraction of all rows of an epoch
	// FirstPass is the step, counted over all epochs, in which the last of its samples is
	// served for the first time. It is null if that never happens.
	FirstPass *int64 `json:"first_pass"`
	// Seen is the fraction of its samples that is served before Explained.SeenAt.
	Seen float64 `json:"seen"`
}

// explainSources returns the progress through each source of a mixture: which part is seen
// before step, or before the end of the epochs if step is nil. It returns nil if the job
// has no mixture.
func explainSources(job *fetch.Job, step *int64, epochs int64) (list []ExplainedSource, at *int64) {
	mix := job.Plan().Config().Mix
	if mix == nil {
		return nil, nil
	}
	// The number of the last step can exceed an int64 if a client sends large numbers. It
	// is then capped, because a mixture of that length has served everything.
	seenAt := int64(0)
	if step != nil {
		seenAt = *step
	} else if hi, lo := bits.Mul64(uint64(mix.EpochSteps()), job.EpochNumber()+uint64(epochs)); hi == 0 && lo < math.MaxInt64 {
		seenAt = int64(lo)
	} else {
		seenAt = math.MaxInt64
	}
	req := job.Request()
	for i, s := range sourcesOf(&req) {
		e := ExplainedSource{source: s, Samples: job.Samples(i), Rows: job.SourceRows(i), Seen: mix.Seen(i, seenAt)}
		e.Share = float64(e.Rows) / float64(max(job.Plan().Rows(), 1))
		if first, ok := mix.FirstPass(i); ok {
			e.FirstPass = &first
		}
		list = append(list, e)
	}
	return list, &seenAt
}

// Explained is the answer of the action explain.
type Explained struct {
	Job        string              `json:"job"`
	Plan       string              `json:"plan"`
	Dataset    string              `json:"dataset"`
	Conditions Circumstances       `json:"conditions"`
	Prediction *predict.Prediction `json:"prediction"`
	// Unknown lists the parts of the data path whose rates are unknown. The prediction
	// assumes that they limit nothing.
	Unknown []string `json:"unknown"`
	Running *Running `json:"running,omitempty"`
	// Mixture lists the sources of a mixture. SeenAt is the step to which their Seen
	// refers.
	Mixture []ExplainedSource `json:"mixture,omitempty"`
	SeenAt  *int64            `json:"seen_at,omitempty"`
	// Bill is the estimate of requests to buckets and of their cost. It is omitted if the
	// job reads from none.
	Bill *Bill `json:"bill,omitempty"`
	// Mixing says how well a shuffle of blocks mixes classes. It is omitted for other
	// requests, and if there are no classes.
	Mixing *fetch.Mixing `json:"mixing,omitempty"`
	// Packing describes the packing of documents. It is omitted for requests without pack.
	Packing *fetch.Packing `json:"packing,omitempty"`
	// Bucketing says how much the ranks of a step differ in cost. It is omitted for
	// requests without bucket_by_length.balance.
	Bucketing *fetch.Bucketing `json:"bucketing,omitempty"`
	// Sampling is the result of sample. It is omitted for requests without one.
	Sampling  *fetch.Sampling  `json:"sampling,omitempty"`
	Rates     *fetch.Rates     `json:"rates,omitempty"`
	RatesFrom *fetch.RatesFrom `json:"rates_from,omitempty"`
}

// Circumstances are the conditions that a prediction assumes. A client can change one and
// ask again.
type Circumstances struct {
	Rows        int64   `json:"rows"`
	RowBytes    float64 `json:"row_bytes"`
	Batch       int64   `json:"batch"`
	Ranks       int64   `json:"ranks"`
	Epochs      int64   `json:"epochs"`
	PaceMS      float64 `json:"pace_ms"`
	Nodes       int64   `json:"nodes"`
	CacheBytes  int64   `json:"cache_bytes"`
	HeldBytes   int64   `json:"held_bytes"`
	WindowBytes int64   `json:"window_bytes"`
}

// Running compares the measured rates of a running job to its prediction.
type Running struct {
	Streams int       `json:"streams"`
	Since   time.Time `json:"since"`   // start of the oldest stream
	Seconds float64   `json:"seconds"` // length of the measurement
	Epoch   string    `json:"epoch"`   // "first" or "later": the prediction that it is compared to
	Samples float64   `json:"samples_per_s"`
	Bytes   float64   `json:"bytes_per_s"`
	// Predicted is the rate of the whole epoch. Expected is the rate with the hit share
	// that is measured now: hits are not spread evenly over an epoch.
	Predicted predict.Rate `json:"predicted_samples_per_s"`
	Expected  predict.Rate `json:"expected_samples_per_s"`
	Limit     string       `json:"limit"`     // the part for which streams waited most
	Wait      WaitShare    `json:"wait"`      // fractions of the streams' time
	HitShare  *float64     `json:"hit_share"` // fraction of blobs from the spill; null without blobs
	// Parted is set if the measured rate differs from Expected by more than 15 %. Changed
	// lists the rates that have changed since the job began.
	Parted  bool             `json:"parted"`
	Changed []predict.Change `json:"changed"`
}

// WaitShare has the fractions of time that streams waited for each part.
type WaitShare struct {
	Store    float64 `json:"store"`
	Spill    float64 `json:"spill"`
	Peer     float64 `json:"peer"`
	Encode   float64 `json:"encode"`
	Consumer float64 `json:"consumer"`
}

// explain implements the action. It opens the job as a read would, so a caller learns only
// about rows that exist for it. The prediction needs rates of this server; they are shown
// only to callers that may see all counters.
func (s actionHandler) explain(ctx context.Context, b []byte, send func([]byte) error) error {
	req, err := parseExplain(b)
	if err != nil {
		return err
	}
	cat := s.catalog(ctx)
	job, err := cat.Open(ctx, req.Request, policy.Read)
	if err != nil {
		return err
	}
	defer job.Close()
	c, err := cat.Conditions(ctx, job)
	if err != nil {
		return err
	}
	if c.Rows == 0 {
		return fmt.Errorf("%w: the request serves no row", schema.ErrInvalid)
	}
	req.apply(&c)
	shown := cat.SeesAll()
	rates, from := cat.RatesAt(time.Now(), &c)
	if req.Rates != nil {
		rates = req.Rates.Over(rates)
	}
	if !rates.Known() {
		return fmt.Errorf("%w: this server was not calibrated: nothing is known of how fast its store is; an operator "+
			"measures it by the action calibrate (bowstring calibrate), streams that keep the store busy for a second "+
			"show it, or the field \"rates\" says it", schema.ErrNotFound)
	}
	answer := Explained{Job: job.Group(), Plan: job.ID(), Dataset: job.SnapshotName(), Conditions: circumstancesOf(&c)}
	if answer.Prediction, err = predict.Of(rates, c); err != nil {
		return err
	}
	answer.Unknown = rates.Unknown(&c)
	answer.Mixture, answer.SeenAt = explainSources(job, req.Step, max(req.Epochs, 1))
	if answer.Bill, err = s.bill(ctx, cat, job, &c, answer.Prediction); err != nil {
		return err
	}
	if answer.Mixing, err = cat.Mixing(ctx, job); err != nil {
		return err
	}
	answer.Sampling, answer.Packing = job.Sampling(), job.Resolved().Packing()
	answer.Bucketing = job.Bucketing()
	if answer.Packing != nil {
		answer.Packing.Balance(job.Plan())
	}
	if answer.Running, err = s.running(ctx, cat, job, &c, req, rates, shown); err != nil {
		return err
	}
	if r := answer.Running; r != nil {
		epoch := &answer.Prediction.First
		if r.Epoch == laterEpoch {
			epoch = &answer.Prediction.Later
		}
		hits := epoch.HitShare
		if r.HitShare != nil {
			hits = *r.HitShare
		}
		r.compare(epoch, predict.At(rates, c, hits))
	}
	if shown || req.Rates != nil {
		if !shown {
			rates = *req.Rates
		} else {
			answer.RatesFrom = &from
		}
		answer.Rates = &rates
	}
	return sendJSON(send, answer)
}

// apply replaces the current conditions by those that the caller assumes.
func (r *explainRequest) apply(c *predict.Job) {
	c.PaceMS, c.Epochs = r.PaceMS, max(r.Epochs, 1)
	if r.Nodes > 0 {
		c.Nodes = r.Nodes
	}
	if r.CacheBytes != nil {
		c.CacheBytes = *r.CacheBytes
	}
	if r.WindowBytes > 0 {
		c.WindowBytes = r.WindowBytes
	}
}

// circumstancesOf returns the conditions of a prediction in the form of the answer.
func circumstancesOf(c *predict.Job) Circumstances {
	return Circumstances{
		Rows: c.Rows, RowBytes: c.RowBytes, Batch: c.Batch, Ranks: c.Ranks, Epochs: c.Epochs, PaceMS: c.PaceMS,
		Nodes:      c.Nodes,
		CacheBytes: c.CacheBytes, HeldBytes: c.HeldBytes, WindowBytes: c.WindowBytes,
	}
}

// jobMeasure has the sums over the running streams of a job at one moment.
type jobMeasure struct {
	at      time.Time
	streams int
	since   time.Time     // start of the oldest stream
	spent   time.Duration // total running time of the streams
	rows    int64
	bytes   int64
	wait    WaitNanos
	all     int64 // blobs that the job has read; spill: those from the spill
	spill   int64
}

// measure sums the streams of a job that visible accepts. If all is set, it also counts the
// blobs that all streams of the job have read.
func (s actionHandler) measure(cat *catalog.Catalog, group string, visible func(*call) bool, all bool) jobMeasure {
	l := jobMeasure{at: time.Now()}
	if all {
		l.all, l.spill = cat.Reads(group)
	}
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	for c := range s.calls.calls {
		if !c.streaming || c.kind != "DoGet" || c.access.Group != group || !visible(c) {
			continue
		}
		l.streams++
		if l.since.IsZero() || c.started.Before(l.since) {
			l.since = c.started
		}
		l.spent += l.at.Sub(c.started)
		l.rows += c.rows.Load()
		l.bytes += c.bytes.Load()
		l.wait.add(c.waits.nanos())
	}
	return l
}

// running measures the job twice and returns the difference; nil if no stream of it is
// visible to the caller. If streams began or ended between the measurements, their sums
// cannot be compared. The result then covers the time since the oldest stream began.
func (s actionHandler) running(ctx context.Context, cat *catalog.Catalog, job *fetch.Job, c *predict.Job, req *explainRequest,
	now fetch.Rates, shown bool) (*Running, error) {
	visible := knows(cat)
	a := s.measure(cat, job.Group(), visible, shown)
	if a.streams == 0 {
		return nil, nil //nolint:nilnil // that nothing runs is no error
	}
	b := a
	if *req.ObserveMS > 0 {
		timer := time.NewTimer(time.Duration(*req.ObserveMS) * time.Millisecond)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		b = s.measure(cat, job.Group(), visible, shown)
	}
	if *req.ObserveMS == 0 || b.streams != a.streams || !b.since.Equal(a.since) || b.rows < a.rows {
		a = jobMeasure{at: b.since}
	}
	if b.streams == 0 {
		return nil, nil //nolint:nilnil // they have ended meanwhile
	}
	r := runningOf(&a, &b)
	r.Epoch = firstEpoch
	if b.rows > c.Rows || c.RowReads > 0 && float64(b.all)/c.RowReads > float64(c.Rows) {
		r.Epoch = laterEpoch
	}
	if shown && req.Rates == nil {
		then, _ := cat.RatesAt(b.since, c)
		r.Changed = predict.Changes(then, now, partsShare)
	}
	return r, nil
}

// runningOf returns the rates between two measurements.
func runningOf(a, b *jobMeasure) *Running {
	r := &Running{Streams: b.streams, Since: b.since.UTC(), Seconds: max(b.at.Sub(a.at).Seconds(), 1e-3),
		Changed: []predict.Change{}}
	r.Samples, r.Bytes = float64(b.rows-a.rows)/r.Seconds, float64(b.bytes-a.bytes)/r.Seconds
	spent := max(float64(b.spent-a.spent), 1)
	share := func(now, then int64) float64 { return min(max(float64(now-then)/spent, 0), 1) }
	r.Wait = WaitShare{
		share(b.wait.Store, a.wait.Store), share(b.wait.Spill, a.wait.Spill), share(b.wait.Peer, a.wait.Peer),
		share(b.wait.Encode, a.wait.Encode), share(b.wait.Consumer, a.wait.Consumer),
	}
	if n := b.all - a.all; n > 0 {
		hits := float64(b.spill-a.spill) / float64(n)
		r.HitShare = &hits
	}
	return r
}

// compare sets the predicted figures, and whether the measured rate differs. e is the
// prediction for the epoch, now the one for the hit share that is measured.
func (r *Running) compare(e *predict.Epoch, now predict.Epoch) {
	r.Predicted, r.Expected, r.Limit = e.SamplesPerSec, now.SamplesPerSec, r.limit(&now)
	r.Parted = now.SamplesPerSec != predict.Unlimited && math.Abs(r.Samples/float64(now.SamplesPerSec)-1) > partsShare
}

// limit names the part for which streams waited most. If that is the store, the prediction
// decides whether the store or the link to it is the slower one: a stream cannot measure
// that.
func (r *Running) limit(e *predict.Epoch) string {
	most, name := 0.0, predict.ByConsumer
	for _, part := range []struct {
		limit predict.Limit
		share float64
	}{
		{predict.ByStore, r.Wait.Store}, {predict.BySpill, r.Wait.Spill}, {predict.ByNetwork, r.Wait.Peer},
		{predict.ByNode, r.Wait.Encode}, {predict.ByConsumer, r.Wait.Consumer},
	} {
		if part.share > most {
			most, name = part.share, part.limit
		}
	}
	if name == predict.ByStore {
		for _, p := range e.Parts { // the slowest first
			if p.Limit == predict.ByStore || p.Limit == predict.ByLink {
				return string(p.Limit)
			}
		}
	}
	return string(name)
}

// calibrate implements the action: it measures the rates of the store and the spill, or
// sets or returns them.
func (s actionHandler) calibrate(ctx context.Context, b []byte, send func([]byte) error) error {
	var req struct {
		Dataset string       `json:"dataset"`
		Seconds float64      `json:"seconds"`
		Busy    bool         `json:"busy"`
		Probe   *bool        `json:"probe"`
		Rates   *fetch.Rates `json:"rates"`
	}
	if err := body(b, &req); err != nil {
		return err
	}
	// A measurement loads the store, so its length is bounded.
	const mostSeconds = 60
	if req.Seconds > mostSeconds {
		return &schema.FieldError{Field: "seconds", Got: fmt.Sprint(req.Seconds),
			Want: fmt.Sprintf("at most %d", mostSeconds)}
	}
	answer := struct {
		*fetch.Calibration
		Dataset string `json:"dataset,omitempty"`
		CPU     int64  `json:"cpu_ns"`
	}{Calibration: &fetch.Calibration{Uncertainty: map[string]fetch.Uncertain{}}}
	var err error
	cat := s.catalog(ctx)
	switch {
	case req.Rates != nil:
		if err = cat.SetRates(ctx, *req.Rates); err == nil {
			answer.Rates = *req.Rates
		}
	case req.Probe != nil && !*req.Probe:
		answer.Rates, err = cat.Rates()
	default:
		answer.Calibration, answer.Dataset, err = cat.Calibrate(ctx, req.Dataset, fetch.CalibrateOptions{
			Time: time.Duration(req.Seconds * float64(time.Second)), Busy: req.Busy,
		})
	}
	if err != nil {
		return err
	}
	answer.CPU = int64(fetch.CPU())
	return sendJSON(send, answer)
}
