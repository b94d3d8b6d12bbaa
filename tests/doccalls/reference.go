package doccalls

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Reference is the page about a program: the help of each command and, unless it is "", the
// configuration file with its defaults. foreign are commands of another program's library, of which
// the page has only a line; the root's flags are left out then, for they are that library's too.
func Reference(program *cobra.Command, configuration string, foreign ...string) string {
	var page strings.Builder
	fmt.Fprintf(&page, "# %s\n\nGenerated from the source (`UPDATE=1 go test -run TestReference` in its folder). `--help` prints the same.\n", program.CommandPath())
	if configuration != "" {
		page.WriteString("The [configuration file](#configuration) is at the end.\n")
	}
	isForeign := map[string]bool{}
	for _, name := range foreign {
		isForeign[name] = true
	}
	var write func(c *cobra.Command)
	write = func(c *cobra.Command) {
		switch {
		case c.Hidden:
			return
		case c.HasParent() && isForeign[c.Name()]:
			fmt.Fprintf(&page, "\n## %s\n`kubectl %s`, through cloudcore, with the same arguments and flags.\n", c.CommandPath(), c.Name())
			return
		}
		fmt.Fprintf(&page, "\n## %s\n%s.\n", c.CommandPath(), c.Short)
		var text []string
		if c.Long != "" {
			text = append(text, c.Long)
		}
		if c.Runnable() {
			text = append(text, "Usage:\n  "+c.UseLine())
		}
		if c.Example != "" {
			text = append(text, "Examples:\n"+c.Example)
		}
		if flags := c.NonInheritedFlags().FlagUsages(); flags != "" && (c.HasParent() || len(foreign) == 0) {
			text = append(text, "Flags:\n"+flags)
		}
		if len(text) > 0 {
			page.WriteString("```text\n")
			for line := range strings.Lines(strings.TrimSpace(strings.Join(text, "\n\n")) + "\n") {
				page.WriteString(strings.TrimRight("  "+line, " \n") + "\n") // at the margin it would be a command that a test runs
			}
			page.WriteString("```\n")
		}
		for _, sub := range c.Commands() {
			write(sub)
		}
	}
	write(program)
	if configuration != "" {
		fmt.Fprintf(&page, "\n## Configuration\nEvery field with its default; `%s config default` prints this.\n```text\n%s\n```\n", program.CommandPath(), strings.TrimSpace(configuration))
	}
	return page.String()
}
