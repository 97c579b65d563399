package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// plainBash is for a bash without the package bash-completion, whose functions the script would call: words are what is between
// spaces then.
const plainBash = `
__netctl_init_completion()
{
    COMPREPLY=()
    if declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
        _get_comp_words_by_ref "$@" cur prev words cword
        return
    fi
    local line=${COMP_LINE:0:COMP_POINT}
    read -ra words <<<"$line"
    [[ $line != *[[:space:]] ]] || words+=("")
    cword=$((${#words[@]} - 1))
    cur=${words[cword]}
    prev=${words[cword > 0 ? cword - 1 : 0]}
}
declare -F _filedir >/dev/null 2>&1 || _filedir() { compopt -o default; }
`

// addCompletion makes the command completion, whose script for bash needs nothing but bash. Where scripts are written to must be known
// before.
func addCompletion(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	bash, _, err := root.Find([]string{"completion", "bash"})
	if err != nil || bash.RunE == nil {
		return
	}
	script := bash.RunE
	bash.RunE = func(cmd *cobra.Command, args []string) error {
		if err := script(cmd, args); err != nil {
			return err
		}
		_, err := fmt.Fprint(cmd.OutOrStdout(), plainBash)
		return err
	}
}
