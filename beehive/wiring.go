package beehive

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/skerry-io/skerry/beehive/message"
)

// Wiring is the wiring table of a process, in order.
type Wiring []ModuleWiring

// ModuleWiring is one line of it.
type ModuleWiring struct {
	Name    message.Name    `json:"name"`
	Groups  []message.Group `json:"groups,omitempty"`
	Restart string          `json:"restart"`
	Mailbox int             `json:"mailbox"`
	Topics  []string        `json:"topics,omitempty"` // that the module declares
}

// Wiring returns how the process is wired. It may be called before Run.
func (r *Runner) Wiring() Wiring {
	var w Wiring
	for _, m := range r.modules {
		line := ModuleWiring{Name: m.name, Groups: m.Groups, Restart: m.Restart.String(), Mailbox: m.mailbox()}
		if t, ok := m.Module.(Topics); ok {
			for _, k := range t.Topics() {
				line.Topics = append(line.Topics, k.String())
			}
		}
		w = append(w, line)
	}
	return w
}

// WriteTable writes the wiring for people.
func (w Wiring) WriteTable(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "MODULE\tGROUPS\tRESTART\tMAILBOX\tTOPICS") // Flush returns the error
	for _, m := range w {
		groups := make([]string, len(m.Groups))
		for i, g := range m.Groups {
			groups[i] = string(g)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", m.Name, orDash(groups), m.Restart, m.Mailbox, orDash(m.Topics))
	}
	return t.Flush()
}

// WriteJSON writes the wiring for scripts.
func (w Wiring) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(w)
}

func orDash(s []string) string {
	if len(s) == 0 {
		return "-"
	}
	return strings.Join(s, ",")
}

// Names returns the names of the modules.
func (w Wiring) Names() []string {
	var names []string
	for _, m := range w {
		names = append(names, string(m.Name))
	}
	return names
}
