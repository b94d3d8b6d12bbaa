package relay

import "testing"

// A device with an older copy of its store reports an event with a lower count than the cloud's: it
// is ignored.
func TestClaims_20_CountsOfEventsOnlyGrow(t *testing.T) {
	for name, tc := range map[string]struct {
		there, said string
		news        bool
	}{
		"more":               {`{"count":3}`, `{"count":6}`, true},
		"less":               {`{"count":6}`, `{"count":3}`, false},
		"less, of a series":  {`{"series":{"count":6}}`, `{"series":{"count":3}}`, false},
		"less, as it was":    {`{"deprecatedCount":6}`, `{"deprecatedCount":3}`, false},
		"the same, reworded": {`{"count":3,"message":"a"}`, `{"count":3,"message":"b"}`, true},
		"can't be read":      {`{"count":"x"}`, `{"count":3}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := occurrences([]byte(tc.there)) <= occurrences([]byte(tc.said)); got != tc.news {
				t.Errorf("news: %v, want %v", got, tc.news)
			}
		})
	}
}
