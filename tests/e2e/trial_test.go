package e2e_test

import "testing"

// The command after `trial set` and `trial start` may be one that asks edgecore, also on a busy
// machine; and the output of `trial up` about the sample after a power cut is true at that moment.
func TestTrial_CommandsReturnWhenItIsSo(t *testing.T) {
	s := newSystem(t)
	for _, verb := range [][]string{
		{"set", "edge1", "log.verbosity=3"},
		{"set", "edge1", "log.verbosity=2"},
		{"start", "edge1", "edgecore"},
	} {
		if verb[0] == "start" {
			s.Kill("edge1", "edgecore")
		}
		s.Must(s.Run(t.Context(), verb...))
		var answer struct{}
		if err := s.AskSocket(t.Context(), "edge1", &answer); err != nil {
			t.Errorf("after %v: %v", verb, err)
		}
	}

	s.Must(s.Run(t.Context(), "poweroff", "edge1"))
	s.Mend(t.Context()) // trial up
	const each = 2      // the sample and its store, a container and a sandbox each
	if got := s.Containers("edge1"); len(got) < 2*each {
		t.Errorf("up says that the sample runs, and there are the containers %v", got)
	}
}
