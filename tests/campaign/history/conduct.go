package history

import (
	"fmt"
	"slices"
	"time"
)

// answers looks for reads that a device stopped answering. After damage it may have to ask the
// cloud.
func answers(h History) (found []Violation) {
	said := map[object]bool{}
	for _, r := range h {
		if r.Kind != Unanswered || said[r.object()] {
			continue
		}
		if slices.ContainsFunc(h, func(x Record) bool { return x.Kind == Damage && x.Who == r.Who && x.At <= r.At }) {
			continue
		}
		said[r.object()] = true
		found = append(found, Violation{Rule: Answers, Records: []Record{r},
			Text: fmt.Sprintf("%s did not answer for %s %s, which it had", r.Who, r.Resource, r.Name)})
	}
	return found
}

// mostWatches is how many watches one cloudcore may open in the period of a Load: all that twenty
// edges want are opened again where it has lost them, some of them several times.
const mostWatches = 1500

// single looks at records that are a violation by themselves.
func single(h History) (found []Violation) {
	for _, r := range h {
		switch {
		case r.Kind == Missing:
			found = append(found, Violation{Rule: Whole, Records: []Record{r},
				Text: fmt.Sprintf("%s lost %s %s", r.Who, r.Resource, r.Name)})
		case r.Kind == Ended:
			found = append(found, Violation{Rule: Wanted, Records: []Record{r}, Text: fmt.Sprintf("%s saw the end of pod %s, which runs for ever", r.Who, r.Name)})
		case r.Kind == Unready:
			found = append(found, Violation{Rule: Ready, Records: []Record{r}, Text: fmt.Sprintf("%s was not Ready", r.Who)})
		case r.Kind == Load && r.Value > mostWatches:
			found = append(found, Violation{Rule: Bounded, Records: []Record{r},
				Text: fmt.Sprintf("%s opened %d watches in %v", r.Who, r.Value, (r.End - r.At).Round(time.Second))})
		}
	}
	return found
}
