package watch

import (
	"cmp"
	"slices"
	"time"

	"bowstring/fetch"
	"bowstring/flight"
)

// Job is a job: of the streams of one plan, or of those that the spill has together.
type Job struct {
	Job        string   `json:"job"`
	Dataset    string   `json:"dataset"`
	Streams    int      `json:"streams"`
	Epoch      uint64   `json:"epoch"`
	Progress   float64  `json:"progress"`     // share of the epoch
	LeftSecs   *float64 `json:"epoch_left_s"` // null where it cannot be said yet
	SpillShare *float64 `json:"spill_share"`  // of its blobs; null without a spill
	SavedS     float64  `json:"saved_s"`      // in the store, by the spill
}

// jobsOf lists the jobs that the spill knows, and of the other streams those of one plan together.
func jobsOf(a, b *flight.Stats, secs float64) []Job {
	list := []Job{}
	known := map[string]bool{}
	for i := range b.Engine.Jobs {
		j := &b.Engine.Jobs[i]
		known[j.Dataset] = true
		one := Job{
			Job: j.Job, Dataset: j.Dataset, Streams: j.Streams, Epoch: j.Epoch,
			Progress:   float64(j.Row) / float64(max(j.Rows, 1)),
			SpillShare: Share(j.SpillReads, j.StoreReads+j.WindowReads),
		}
		one.SavedS = time.Duration(j.SavedNanos).Seconds()
		if j.RowTime > 0 && j.Streams > 0 {
			left := time.Duration((j.Rows - j.Row) * j.RowTime).Seconds()
			one.LeftSecs = &left
		}
		list = append(list, one)
	}
	before := map[string]float64{}
	for _, j := range plans(a.Engine.Windows) {
		before[j.Job] = j.Progress
	}
	for _, j := range plans(b.Engine.Windows) {
		if known[j.Dataset] {
			continue
		}
		if past, ok := before[j.Job]; ok && j.Progress > past {
			left := (1 - j.Progress) / (j.Progress - past) * secs
			j.LeftSecs = &left
		}
		list = append(list, j)
	}
	return list
}

// plans are the streams of one plan together, which are as far as the one that is least far.
func plans(windows []fetch.WindowStats) []Job {
	var list []Job
	for _, w := range windows {
		if w.Steps == 0 {
			continue
		}
		at := float64(w.Step) / float64(w.Steps)
		if i := slices.IndexFunc(list, func(j Job) bool { return j.Job == w.Job && j.Epoch == w.Epoch }); i >= 0 {
			list[i].Streams++
			list[i].Progress = min(list[i].Progress, at)
			continue
		}
		list = append(list, Job{Job: w.Job, Dataset: w.Dataset, Streams: 1, Epoch: w.Epoch, Progress: at})
	}
	return list
}

// cacheOf is what the spill holds, by dataset.
func cacheOf(st *flight.Stats) []Cached {
	list := []Cached{}
	if st.Engine.Spill == nil {
		return list
	}
	var read float64 // from the store, in seconds
	if st.Engine.Reads > 0 {
		read = time.Duration(st.Engine.ReadNanos).Seconds() / float64(st.Engine.Reads)
	}
	for name, d := range st.Engine.Spill.Datasets {
		list = append(list, Cached{
			Dataset: name, Bytes: d.Bytes, Entries: d.Entries, HitShare: Share(d.Hits, d.Misses),
			Saved: d.HitBytes, SavedS: float64(d.Hits) * read, Evicted: d.Evicted,
		})
	}
	slices.SortFunc(list, func(a, b Cached) int {
		return cmp.Or(cmp.Compare(b.Saved, a.Saved), cmp.Compare(a.Dataset, b.Dataset))
	})
	return list
}

// tenantsOf is what was done on each account.
func tenantsOf(a, b *flight.Stats, secs float64) []Tenant {
	before := map[string]*flight.TenantInfo{}
	for i := range a.Tenants {
		if !a.Tenants[i].Others {
			before[a.Tenants[i].Tenant] = &a.Tenants[i]
		}
	}
	list, sum := []Tenant{}, 0.0
	for i := range b.Tenants {
		t := &b.Tenants[i]
		one := Tenant{Tenant: t.Tenant, Others: t.Others, Streams: t.Streams, Bytes: t.Bytes}
		// What the others did in the meantime is not known: tenants become part of them.
		if past := before[t.Tenant]; !t.Others && past != nil {
			one.RowsPerSec, one.BytesPerSec = float64(max(t.Rows-past.Rows, 0))/secs,
				float64(max(t.Bytes-past.Bytes, 0))/secs
		}
		sum += one.BytesPerSec
		list = append(list, one)
	}
	for i := range list {
		if t := &list[i]; sum > 0 && !t.Others {
			share := t.BytesPerSec / sum
			t.Share = &share
		}
	}
	return list
}
