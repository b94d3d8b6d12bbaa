package nodemetrics_test

import (
	"math"
	"math/rand/v2"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/skerry-io/skerry/common/nodemetrics"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// An ID stands for one series, and a metric has one help text and type.
func TestAll(t *testing.T) {
	name := regexp.MustCompile(`^skerry_node_[a-z0-9_]+$`)
	metrics, all := map[string]nodemetrics.Series{}, nodemetrics.All()
	for i, s := range all {
		if s.ID != uint32(i+1) || !name.MatchString(s.Name) || s.Help == "" || s.PerUnit <= 0 || (s.Label == "") != (s.Value == "") {
			t.Errorf("%+v at %d", s, i)
		}
		if other, ok := metrics[s.Name]; ok && (other.Help != s.Help || other.Counter != s.Counter || other.Label != s.Label || s.Label == "") {
			t.Errorf("%+v and %+v", s, other)
		}
		metrics[s.Name] = s
	}
	if len(all) > nodemetrics.MaxSeries {
		t.Errorf("%d series", len(all))
	}
}

func TestPack_UnpackReturnsTheSame(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for n := 1; n <= nodemetrics.MaxSamples; n++ {
		var want []nodemetrics.Sample
		at := int64(1_800_000_000)
		for range n {
			s := nodemetrics.Sample{Unix: at, Values: map[uint32]int64{1: 7, 2: random.Int64N(1000) - 500, 40: random.Int64()}}
			at += random.Int64N(120) - 20
			want = append(want, s)
		}
		raw, err := proto.Marshal(nodemetrics.Pack(9, 1, want))
		if err != nil {
			t.Fatal(err)
		}
		var m topicpb.NodeMetrics
		if err := proto.Unmarshal(raw, &m); err != nil {
			t.Fatal(err)
		}
		got, err := nodemetrics.Unpack(&m)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Fatal(n, err, diff)
		}
	}
}

func TestUnpack_RefusesWhatIsAboveTheBounds(t *testing.T) {
	good := func() *topicpb.NodeMetrics {
		return &topicpb.NodeMetrics{Stream: 1, First: 1, Unix: 100, Steps: []int64{60}, Series: []*topicpb.NodeMetricsSeries{{Id: 1, Value: 1, Deltas: []int64{1}}}}
	}
	if _, err := nodemetrics.Unpack(good()); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*topicpb.NodeMetrics){
		"samples": func(m *topicpb.NodeMetrics) { m.Steps = make([]int64, nodemetrics.MaxSamples) },
		"series":  func(m *topicpb.NodeMetrics) { m.Series = make([]*topicpb.NodeMetricsSeries, nodemetrics.MaxSeries+1) },
		"stream":  func(m *topicpb.NodeMetrics) { m.Stream = 0 },
		"number":  func(m *topicpb.NodeMetrics) { m.First = math.MaxUint64 },
		"time":    func(m *topicpb.NodeMetrics) { m.Steps[0] = -101 },
		"future":  func(m *topicpb.NodeMetrics) { m.Unix = math.MaxInt64 - 10 },
		"deltas":  func(m *topicpb.NodeMetrics) { m.Series[0].Deltas = []int64{1, 2} },
		"twice":   func(m *topicpb.NodeMetrics) { m.Series = append(m.Series, m.Series[0]) },
	} {
		m := good()
		change(m)
		if _, err := nodemetrics.Unpack(m); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestSample_SetLeavesOutWhatIsNoNumber(t *testing.T) {
	s := nodemetrics.Sample{Values: map[uint32]int64{}}
	series := nodemetrics.Series{ID: 3, PerUnit: 10}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), 1e300} {
		if s.Set(series, v); len(s.Values) != 0 {
			t.Errorf("%v became %v", v, s.Values)
		}
	}
	if s.Set(series, -1.26); s.Values[3] != -13 {
		t.Errorf("%v", s.Values)
	}
}

func FuzzUnpack(f *testing.F) {
	raw, _ := proto.Marshal(nodemetrics.Pack(1, 1, []nodemetrics.Sample{{Unix: 5, Values: map[uint32]int64{1: 2}}, {Unix: 6, Values: map[uint32]int64{1: 3}}}))
	f.Add(raw)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m topicpb.NodeMetrics
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		samples, err := nodemetrics.Unpack(&m)
		if err != nil {
			return
		}
		again, err := nodemetrics.Unpack(nodemetrics.Pack(m.GetStream(), m.GetFirst(), samples))
		if diff := cmp.Diff(samples, again); err != nil || diff != "" {
			t.Error(err, diff)
		}
	})
}
