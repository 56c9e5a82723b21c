package metrics

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"bowstring/fetch"
)

// classicStep is how many buckets of fetch.Times make one of the classic
// histogram, whose bounds so are four times as far from each other: 15 µs to 16 s.
const (
	classicStep  = 16
	classicFirst = 4 * 8 // bucket whose upper bound is the first one: 2^-16 s
	classicLast  = 24 * 8
)

// times is a fetch.Times as a histogram of both kinds. client_golang makes
// constant ones of one kind only.
type times struct{ fetch.Times }

func newTimes(t fetch.Times) prometheus.Metric { return times{t} }

// Desc implements prometheus.Metric.
func (times) Desc() *prometheus.Desc { return readSeconds.desc }

// Write implements prometheus.Metric.
func (t times) Write(to *dto.Metric) error {
	h := &dto.Histogram{
		SampleCount: proto.Uint64(t.Count), SampleSum: proto.Float64(t.Sum.Seconds()),
		Schema: proto.Int32(fetch.TimesSchema), ZeroThreshold: proto.Float64(1e-9), ZeroCount: proto.Uint64(0),
	}
	sum := uint64(0)
	for i, n := range t.Counts {
		sum += n
		if i >= classicFirst && i <= classicLast && (i-classicFirst)%classicStep == 0 {
			bound := math.Exp2(float64(fetch.TimesFirst+i) / 8)
			h.Bucket = append(h.Bucket, &dto.Bucket{CumulativeCount: proto.Uint64(sum),
				UpperBound: proto.Float64(bound), Exemplar: t.example(bound)})
		}
	}
	t.native(h)
	to.Label = []*dto.LabelPair{{Name: proto.String("tier"), Value: proto.String(t.Tier)}}
	to.Histogram = h
	return nil
}

// native adds the sparse buckets: spans of those that are not empty, and how much
// each differs from the one before.
func (t times) native(h *dto.Histogram) {
	last, before := -1, int64(0)
	for i, n := range t.Counts {
		if n == 0 {
			continue
		}
		if len(h.PositiveSpan) == 0 || i != last+1 {
			offset := int32(i - last - 1)
			if len(h.PositiveSpan) == 0 {
				offset = int32(fetch.TimesFirst + i)
			}
			h.PositiveSpan = append(h.PositiveSpan,
				&dto.BucketSpan{Offset: proto.Int32(offset), Length: proto.Uint32(0)})
		}
		span := h.PositiveSpan[len(h.PositiveSpan)-1]
		span.Length = proto.Uint32(span.GetLength() + 1)
		h.PositiveDelta = append(h.PositiveDelta, int64(n)-before)
		last, before = i, int64(n)
	}
	if len(h.PositiveSpan) == 0 { // or it would be taken for a classic one
		h.PositiveSpan = []*dto.BucketSpan{{Offset: proto.Int32(0), Length: proto.Uint32(0)}}
	}
}

// example is a read in the classic bucket below the bound, nil if there is none.
func (t times) example(bound float64) *dto.Exemplar {
	for _, e := range t.Examples {
		s := e.Took.Seconds()
		if !e.Trace.IsValid() || s > bound || s <= bound/4 {
			continue
		}
		labels := make([]*dto.LabelPair, 0, 2)
		for name, v := range exemplar(e.Trace, e.Span) {
			labels = append(labels, &dto.LabelPair{Name: proto.String(name), Value: proto.String(v)})
		}
		return &dto.Exemplar{Label: labels, Value: proto.Float64(s),
			Timestamp: timestamppb.New(e.At.Round(time.Millisecond))}
	}
	return nil
}
