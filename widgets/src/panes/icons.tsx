// The transport's signs, drawn: fonts differ too much in these characters.

import type { ComponentChildren, JSX } from "preact";

function Icon({ children }: { children: ComponentChildren }): JSX.Element {
  return (
    <svg width="15" height="15" viewBox="0 0 16 16" fill="currentColor" aria-hidden="true">
      {children}
    </svg>
  );
}

export const icons = {
  goto: (
    <Icon>
      <rect x="2" y="3" width="2" height="10" />
      <path d="M14 3v10L5 8z" />
    </Icon>
  ),
  back: (
    <Icon>
      <path d="M12 3v10L4 8z" />
    </Icon>
  ),
  run: (
    <Icon>
      <path d="M4 3v10l9-5z" />
    </Icon>
  ),
  pause: (
    <Icon>
      <rect x="4" y="3" width="3" height="10" />
      <rect x="9" y="3" width="3" height="10" />
    </Icon>
  ),
  phase: (
    <Icon>
      <path d="M3 3v10l6-5z" />
      <rect x="11" y="3" width="2" height="10" opacity=".55" />
    </Icon>
  ),
  step: (
    <Icon>
      <path d="M2 3v10l9-5z" />
      <rect x="12" y="3" width="2" height="10" />
    </Icon>
  ),
};
