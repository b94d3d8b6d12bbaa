package history_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/skerry-io/skerry/tests/campaign/history"
)

// A line makes a record; the n-th of a history is at n seconds and takes a tenth of one.
type line func(*history.Record)

func record(kind history.Kind, who, resource, name, uid string, value int64) line {
	return func(r *history.Record) {
		r.Kind, r.Who, r.Resource, r.Name, r.UID, r.Value = kind, who, resource, name, uid, value
	}
}

func put(who, resource, name string, value int64) line {
	return record(history.Put, who, resource, name, name+"-1", value)
}

func seen(who, resource, name string, value int64) line {
	return record(history.Seen, who, resource, name, name+"-1", value)
}

func get(who, name string, value int64) line {
	return record(history.Get, who, "pods", name, name+"-1", value)
}

func going(who, name string) line { return record(history.Going, who, "pods", name, name+"-1", 0) }
func gone(who, resource, name string) line {
	return record(history.Gone, who, resource, name, name+"-1", 0)
}
func remove(resource, name string) line {
	return record(history.Remove, history.Cloud, resource, name, name+"-1", 0)
}

// final is a viewer's copy of an object of edge1.
func final(who, resource, name string, value int64) line {
	return func(r *history.Record) {
		record(history.Final, who, resource, name, name+"-1", value)(r)
		r.Node = "edge1"
	}
}

func about(uid string, l line) line {
	return func(r *history.Record) { l(r); r.About = uid }
}

func unknown(l line) line {
	return func(r *history.Record) { l(r); r.Unknown = true }
}

// lasts stretches a record to that many seconds.
func lasts(seconds float64, l line) line {
	return func(r *history.Record) { l(r); r.End = r.At + time.Duration(seconds*float64(time.Second)) }
}

// restore puts the copy of that second back.
func restore(copied int) line {
	return func(r *history.Record) {
		r.Kind, r.Who = history.Restore, history.Cloud
		r.End, r.At = r.At, time.Duration(copied)*time.Second
	}
}

// dropped is the end of a pod, with a value, that a device takes back; before the end it had base.
func dropped(who, name string, value, base int64) line {
	return func(r *history.Record) {
		record(history.Dropped, who, pods, name, name+"-1", value)(r)
		r.Base = base
	}
}

func damage(who string) line {
	return func(r *history.Record) { r.Kind, r.Who = history.Damage, who }
}

func build(lines []line) (h history.History) {
	for i, l := range lines {
		r := history.Record{At: time.Duration(i+1) * time.Second}
		r.End = r.At + 100*time.Millisecond
		l(&r)
		h = append(h, r)
	}
	return h
}

const (
	cms    = "configmaps"
	pods   = "pods"
	events = "events"
	cloud  = history.Cloud
	edge   = "edge1"
)

// Each rule is tested with its violation, and the nearest history that is no violation.
func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		lines []line
		want  []string // rules, each with the number of records that show it
	}{
		"nothing": {nil, nil},
		"all is well": {[]line{
			put(cloud, cms, "a", 1), seen(edge, cms, "a", 1), put(cloud, cms, "a", 2), put(cloud, cms, "a", 3), seen(edge, cms, "a", 3), seen(edge, cms, "a", 3),
			final(cloud, cms, "a", 3), final(edge, cms, "a", 3),
		}, nil},

		"an older value at the edge": {[]line{
			put(cloud, cms, "a", 1), put(cloud, cms, "a", 2), seen(edge, cms, "a", 2), seen(edge, cms, "a", 1), seen(edge, cms, "a", 1),
		}, []string{"newest 2"}},
		"an older status in the cloud": {[]line{seen(cloud, pods, "p", 5), seen(cloud, pods, "p", 4)}, []string{"newest 2"}},
		"another object of the name": {[]line{
			seen(edge, cms, "a", 5), record(history.Seen, edge, cms, "a", "a-2", 1),
		}, nil},
		"another viewer": {[]line{seen(edge, cms, "a", 5), seen("edge2", cms, "a", 4)}, nil},
		"an older value that a restore brings": {[]line{
			put(cloud, cms, "a", 1), put(cloud, cms, "a", 2), seen(edge, cms, "a", 2), restore(1), seen(edge, cms, "a", 1),
			put(cloud, cms, "a", 3), seen(edge, cms, "a", 3),
		}, nil},
		"an older value that no restore explains": {[]line{
			put(cloud, cms, "a", 1), put(cloud, cms, "a", 2), put(cloud, cms, "b", 3), restore(3), seen(edge, cms, "a", 2), seen(edge, cms, "a", 1),
		}, []string{"newest 2"}},
		"a status that went back with the cluster": {[]line{seen(cloud, pods, "p", 5), restore(1), seen(cloud, pods, "p", 4)}, nil},
		"a status that went back long after":       {[]line{restore(1), seen(cloud, pods, "p", 5), seen(cloud, pods, "p", 4)}, []string{"newest 2"}},

		"a status of a pod that the cluster lost": {[]line{
			put(cloud, pods, "p", 0), restore(1), put(edge, pods, "p", 2), seen(edge, pods, "p", 2), seen(edge, pods, "p", 1),
		}, nil},
		"a status of a pod that it still had": {[]line{
			put(cloud, pods, "p", 0), put(cloud, cms, "b", 3), restore(2), put(edge, pods, "p", 2), seen(edge, pods, "p", 2), seen(cloud, pods, "p", 2), seen(edge, pods, "p", 1),
		}, []string{"newest 2"}},
		"a status that came to the cloud after the copy": {[]line{
			put(edge, pods, "p", 1), put(edge, pods, "p", 2), seen(edge, pods, "p", 2), seen(cloud, pods, "p", 1), put(cloud, cms, "b", 3), seen(cloud, pods, "p", 2),
			restore(5), seen(edge, pods, "p", 1),
		}, nil},
		"a status that was in the copy": {[]line{
			put(edge, pods, "p", 1), put(edge, pods, "p", 2), seen(edge, pods, "p", 2), seen(cloud, pods, "p", 2), put(cloud, cms, "b", 3), restore(5), seen(edge, pods, "p", 1),
		}, []string{"newest 2"}},

		"a device takes the end of a pod back": {[]line{
			put(edge, pods, "p", 1), seen(edge, pods, "p", 1), put(edge, pods, "p", 5), seen(edge, pods, "p", 5), dropped(edge, "p", 5, 1), seen(edge, pods, "p", 1),
			seen(cloud, pods, "p", 1), final(cloud, pods, "p", 1), final(edge, pods, "p", 1),
		}, nil},
		"it loses more than the end": {[]line{
			seen(edge, pods, "p", 3), seen(edge, pods, "p", 5), dropped(edge, "p", 5, 3), seen(edge, pods, "p", 2),
		}, []string{"newest 2"}},
		"it loses a status of after the end": {[]line{
			seen(edge, pods, "p", 5), dropped(edge, "p", 5, 1), seen(edge, pods, "p", 6), seen(edge, pods, "p", 3),
		}, []string{"newest 2"}},
		"it loses a status that was newer than the end": {[]line{
			seen(edge, pods, "p", 7), dropped(edge, "p", 5, 1), seen(edge, pods, "p", 3),
		}, []string{"newest 2"}},
		"another pod's end is taken back":     {[]line{seen(edge, pods, "p", 5), dropped(edge, "q", 5, 1), seen(edge, pods, "p", 1)}, []string{"newest 2"}},
		"another device takes an end back":    {[]line{seen(edge, pods, "p", 5), dropped("edge2", "p", 5, 1), seen(edge, pods, "p", 1)}, []string{"newest 2"}},
		"the cloud has heard of the end":      {[]line{seen(cloud, pods, "p", 5), dropped(edge, "p", 5, 1), seen(cloud, pods, "p", 1)}, []string{"newest 2"}},
		"the cloud sees an end":               {[]line{record(history.Ended, cloud, pods, "p", "p-1", 1)}, []string{"wanted 1"}},
		"a status before the end is missing":  {[]line{put(edge, pods, "p", 3), put(edge, pods, "p", 5), dropped(edge, "p", 5, 3), final(cloud, pods, "p", 2)}, []string{"kept 2"}},
		"a status after the end is missing":   {[]line{put(edge, pods, "p", 5), dropped(edge, "p", 5, 3), put(edge, pods, "p", 6), final(cloud, pods, "p", 3)}, []string{"kept 2"}},
		"a pod is missing after the pressure": {[]line{dropped(edge, "p", 5, 3), record(history.Missing, edge, pods, "p", "p-1", 0)}, []string{"whole 1"}},

		"a pod is ended that is wanted": {[]line{put(cloud, pods, "p", 1), seen(edge, pods, "p", 1), gone(edge, pods, "p")}, []string{"wanted 2"}},
		"a pod is asked to end":         {[]line{put(cloud, pods, "p", 1), going(edge, "p"), gone(edge, pods, "p")}, []string{"wanted 2"}},
		"a pod that was deleted":        {[]line{put(cloud, pods, "p", 1), remove(pods, "p"), going(edge, "p"), gone(edge, pods, "p")}, nil},
		"a pod is ended before that":    {[]line{put(cloud, pods, "p", 1), gone(edge, pods, "p"), remove(pods, "p")}, []string{"wanted 2"}},
		"a pod that the cluster lost":   {[]line{put(cloud, pods, "p", 1), restore(1), gone(edge, pods, "p")}, nil},
		"a pod that it still had":       {[]line{put(cloud, pods, "p", 1), put(cloud, cms, "a", 1), restore(2), gone(edge, pods, "p")}, []string{"wanted 2"}},

		"a deleted pod comes back":              {[]line{remove(pods, "p"), gone(edge, pods, "p"), seen(edge, pods, "p", 1)}, []string{"dead 2"}},
		"a deleted pod comes with the old copy": {[]line{put(cloud, pods, "p", 1), remove(pods, "p"), gone(edge, pods, "p"), restore(1), seen(edge, pods, "p", 1)}, nil},
		"a ConfigMap goes with its pod and comes with the next": {[]line{
			seen(edge, pods, "a", 1), seen(edge, cms, "a", 1), remove(pods, "a"), gone(edge, pods, "a"), gone(edge, cms, "a"),
			record(history.Seen, edge, pods, "a", "a-2", 1), seen(edge, cms, "a", 1),
		}, nil},
		"a ConfigMap goes a moment before its pod": {[]line{
			seen(edge, pods, "a", 1), remove(pods, "a"), gone(edge, cms, "a"), gone(edge, pods, "a"), seen(edge, cms, "a", 1),
		}, nil},
		"a ConfigMap goes while its pod runs": {[]line{
			seen(edge, pods, "a", 1), seen(edge, cms, "a", 1), gone(edge, cms, "a"), seen(edge, cms, "a", 1),
		}, []string{"dead 2"}},
		"a deleted object is alive at the end": {[]line{
			remove(cms, "a"), final(cloud, cms, "b", 1), final(edge, cms, "a", 1), final(edge, cms, "b", 1),
		}, []string{"dead 2"}},

		"an edge lacks something": {[]line{put(cloud, cms, "a", 1), final(cloud, cms, "a", 1), final(edge, cms, "b", 1), final(cloud, cms, "b", 1)}, []string{"kept 2"}},
		"an edge is behind":       {[]line{put(cloud, cms, "a", 2), final(cloud, cms, "a", 2), final(edge, cms, "a", 1)}, []string{"kept 3"}},
		"a status is missing":     {[]line{put(edge, pods, "p", 7), final(cloud, pods, "p", 6)}, []string{"kept 2"}},
		"a status of a pod that ended and came with an old copy": {[]line{
			put(cloud, pods, "p", 1), put(edge, pods, "p", 7), remove(pods, "p"), gone(edge, pods, "p"), restore(1), final(cloud, pods, "p", 1),
		}, nil},
		"a status of a pod that goes on after an old copy": {[]line{
			put(cloud, pods, "p", 1), put(edge, pods, "p", 7), restore(1), final(cloud, pods, "p", 1),
		}, []string{"kept 2"}},
		"a status that was not acknowledged": {[]line{
			put(edge, pods, "p", 6), unknown(put(edge, pods, "p", 7)), final(cloud, pods, "p", 6),
		}, nil},

		"an event is missing":             {[]line{put(edge, events, "e", 1), final(cloud, events, "f", 1)}, []string{"kept 1"}},
		"an event is counted too little":  {[]line{put(edge, events, "e", 1), put(edge, events, "e", 2), final(cloud, events, "e", 1)}, []string{"exact 2"}},
		"an event is counted too often":   {[]line{put(edge, events, "e", 1), final(cloud, events, "e", 2)}, []string{"exact 2"}},
		"an event is exact":               {[]line{put(edge, events, "e", 1), put(edge, events, "e", 2), unknown(put(edge, events, "e", 3)), final(cloud, events, "e", 3)}, nil},
		"an event was lost with the copy": {[]line{put(edge, events, "e", 1), restore(1), final(cloud, events, "f", 1)}, nil},
		"an event after the restore":      {[]line{restore(0), put(edge, events, "e", 1), final(cloud, events, "f", 1)}, []string{"kept 1"}},

		"an event was lost with a page":        {[]line{put(edge, events, "e", 1), damage(edge), final(cloud, events, "f", 1)}, nil},
		"an event of another device":           {[]line{put(edge, events, "e", 1), damage("edge2"), final(cloud, events, "f", 1)}, []string{"kept 1"}},
		"an event after the damage":            {[]line{damage(edge), put(edge, events, "e", 1), final(cloud, events, "f", 1)}, []string{"kept 1"}},
		"a pod is ended after the damage":      {[]line{put(cloud, pods, "p", 1), damage(edge), gone(edge, pods, "p")}, []string{"wanted 2"}},
		"a status that a damaged store forgot": {[]line{put(edge, pods, "p", 1), put(edge, pods, "p", 2), damage(edge), get(edge, "p", 1)}, nil},

		"a report is missing":                   {[]line{put(edge, "nodeoperations", "o", 7), final(cloud, "nodeoperations", "o", 6)}, []string{"kept 2"}},
		"a report goes back":                    {[]line{seen(cloud, "nodeoperations", "o", 7), seen(cloud, "nodeoperations", "o", 6)}, []string{"newest 2"}},
		"a device answers no longer":            {[]line{record(history.Unanswered, edge, pods, "p", "p-1", 0)}, []string{"answers 1"}},
		"a device answers no longer, damaged":   {[]line{damage(edge), record(history.Unanswered, edge, pods, "p", "p-1", 0)}, nil},
		"another device was damaged":            {[]line{damage("edge2"), record(history.Unanswered, edge, pods, "p", "p-1", 0)}, []string{"answers 1"}},
		"a pod was lost with another record":    {[]line{damage(edge), record(history.Missing, edge, pods, "p", "p-1", 0)}, []string{"whole 1"}},
		"a node whose own things are all right": {[]line{record(history.Unready, edge, "nodes", edge, "", 0)}, []string{"ready 1"}},
		"watches are opened in a busy loop":     {[]line{record(history.Load, "cloud1", "", "", "", 1501)}, []string{"bounded 1"}},
		"watches are opened again":              {[]line{record(history.Load, "cloud1", "", "", "", 1500)}, nil},

		"events in another order, long after a restore": {[]line{
			restore(0), about("p", put(edge, events, "first", 1)), about("p", put(edge, events, "second", 1)), seen(cloud, events, "second", 1), seen(cloud, events, "first", 1),
			final(cloud, events, "first", 1), final(cloud, events, "second", 1),
		}, []string{"order 3"}},
		"events that a restore brought into another order": {[]line{
			about("p", put(edge, events, "first", 1)), about("p", put(edge, events, "second", 1)), restore(0), seen(cloud, events, "second", 1), seen(cloud, events, "first", 1),
			final(cloud, events, "first", 1), final(cloud, events, "second", 1),
		}, nil},
		"events in another order": {[]line{
			about("p", put(edge, events, "first", 1)), about("p", put(edge, events, "second", 1)), seen(cloud, events, "second", 1), seen(cloud, events, "first", 1),
			final(cloud, events, "first", 1), final(cloud, events, "second", 1),
		}, []string{"order 3"}},
		"events in another order, of a device that lost the record of the first": {[]line{
			about("p", put(edge, events, "first", 1)), damage(edge), about("p", put(edge, events, "second", 1)), seen(cloud, events, "second", 1), seen(cloud, events, "first", 1),
			final(cloud, events, "first", 1), final(cloud, events, "second", 1),
		}, nil},
		"events in another order, after damage and before it": {[]line{
			damage(edge), about("p", put(edge, events, "first", 1)), about("p", put(edge, events, "second", 1)), seen(cloud, events, "second", 1), seen(cloud, events, "first", 1),
			damage(edge), final(cloud, events, "first", 1), final(cloud, events, "second", 1),
		}, []string{"order 3"}},
		"events about different objects": {[]line{
			about("p", put(edge, events, "first", 1)), about("q", put(edge, events, "second", 1)), seen(cloud, events, "second", 1), seen(cloud, events, "first", 1),
			final(cloud, events, "first", 1), final(cloud, events, "second", 1),
		}, nil},

		"the device reads what it wrote": {[]line{put(edge, pods, "p", 1), get(edge, "p", 1), put(edge, pods, "p", 2), get(edge, "p", 2)}, nil},
		"the device forgets": {[]line{
			put(edge, pods, "p", 1), get(edge, "p", 1), put(edge, pods, "p", 2), get(edge, "p", 2), put(edge, pods, "p", 3), get(edge, "p", 2), get(edge, "p", 3),
		}, []string{"register 3"}},
		"the device forgets of a pod that was made after a restore and damage": {[]line{
			restore(0), damage(edge), put(cloud, pods, "p", 0),
			put(edge, pods, "p", 1), get(edge, "p", 1), put(edge, pods, "p", 2), get(edge, "p", 2), put(edge, pods, "p", 3), get(edge, "p", 2), get(edge, "p", 3),
		}, []string{"register 3"}},
		"the device forgets of a pod that was made before": {[]line{
			put(cloud, pods, "p", 0), restore(0), put(edge, pods, "p", 1), put(edge, pods, "p", 2), get(edge, "p", 2), get(edge, "p", 1),
		}, nil},
		"a read during a write": {[]line{put(edge, pods, "p", 1), lasts(5, put(edge, pods, "p", 2)), get(edge, "p", 1), get(edge, "p", 2)}, nil},
		"a read goes back during a write": {[]line{
			put(edge, pods, "p", 1), lasts(5, put(edge, pods, "p", 2)), get(edge, "p", 2), get(edge, "p", 1),
		}, []string{"register 4"}},
		"a write that was not answered": {[]line{put(edge, pods, "p", 1), unknown(put(edge, pods, "p", 2)), get(edge, "p", 1), get(edge, "p", 2)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			found := build(c.lines).Check()
			for _, v := range found {
				got = append(got, string(v.Rule)+" "+string(rune('0'+len(v.Records))))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s\n%v", diff, found)
			}
		})
	}
}

// A violation names the faults at its time, and not those from long before.
func TestCheck_namesFaults(t *testing.T) {
	fault := func(who string) line {
		return func(r *history.Record) { r.Kind, r.Who = history.Fault, who }
	}
	lines := []line{fault("an old one")}
	for range 60 {
		lines = append(lines, get(edge, "p", 1))
	}
	lines = append(lines, fault("a replica stands still"), put(edge, cms, "a", 2), seen(edge, cms, "a", 2), seen(edge, cms, "a", 1))
	found := build(lines).Check()
	if len(found) != 1 || len(found[0].Faults) != 1 || found[0].Faults[0].Who != "a replica stands still" {
		t.Fatalf("got %v", found)
	}
	if text := found[0].String(); !strings.Contains(text, "a replica stands still") || !strings.Contains(text, "value 1 of configmaps a after 2") {
		t.Errorf("it says %s", text)
	}
}

func TestHistory_isReadAsItWasWritten(t *testing.T) {
	h := build([]line{about("p", put(edge, events, "e", 1)), unknown(put(edge, pods, "p", 2)), restore(1), final(cloud, cms, "a", 3)})
	var b bytes.Buffer
	if err := h.Write(&b); err != nil {
		t.Fatal(err)
	}
	got, err := history.Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(h, got); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
}

func TestRecorder(t *testing.T) {
	r := history.NewRecorder()
	r.Add(history.Record{Kind: history.Seen, At: 2 * time.Hour})
	r.Add(history.Record{Kind: history.Put})
	h := r.History()
	if len(h) != 2 || h[0].Kind != history.Put || h[0].At == 0 || h[1].At != 2*time.Hour {
		t.Errorf("got %v", h)
	}
}
