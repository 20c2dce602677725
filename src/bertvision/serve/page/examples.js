// What a newcomer can click. Made-up places, so that the answer can come from the passage alone.

const CLUBS =
  "A guide to football clubs lists Traria United and Soline Rovers. 277 supporters come to Soline Rovers. " +
  "406 supporters come to Traria United. Eugene Grunder decides who plays for Soline Rovers, but the players of " +
  "Traria United are dressed in violet.";
const PAPERS =
  "The Windine Courier goes to 248 homes. The presses of the Pelane Herald stand in Pumport. Beatrice Soming and " +
  "Max Rendberg met through their love of the Windine Courier. The Pelane Herald earns its money for Ralph Telane. " +
  "The presses of the Windine Courier stand in Nessburg. The Windine Courier goes back to 1777.";
const MILLS =
  "The mill at Lennbridge was built by Ada Holt. Tom Varley runs the mill at Oakford. The mill at Lennbridge was built " +
  "in 1871, while the mill at Oakford grinds rye for 34 villages. A flood carried away the wheel of the mill at Oakford " +
  "in 1903.";

export const EXAMPLES = {
  ask: [
    { text: PAPERS, with: "How many readers does the Windine Courier have?" },
    { text: CLUBS, with: "What colour do Traria United wear?" },
    { text: CLUBS, with: "Who is the coach of Soline Rovers?" },
    { text: MILLS, with: "When was the mill at Lennbridge built?" },
    { text: PAPERS, with: "When was the Pelane Herald founded?", note: "not in the passage" },
  ],
  pair: [
    { text: "A girl is playing the guitar on a bench.", with: "A young woman plays an instrument outside." },
    { text: "The train leaves at noon.", with: "Two dogs run across a field." },
  ],
  text: [
    { text: "A warm, funny and quietly brilliant film." },
    { text: "Two hours of noise in search of a story." },
    { text: "It begins slowly, and then you cannot look away." },
  ],
};
