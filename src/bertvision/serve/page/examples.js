// What a newcomer can click. Made-up places, so that the answer can come from the passage alone.

const CLUBS =
  "A guide to football clubs lists Traria United and Soline Rovers. 277 supporters come to Soline Rovers. " +
  "406 supporters come to Traria United. Eugene Grunder decides who plays for Soline Rovers, but the players of " +
  "Traria United are dressed in violet.";
const PAPERS =
  "The Windine Courier goes to 248 homes. The presses of the Pelane Herald stand in Pumport. Beatrice Soming and " +
  "Max Rendberg met through their love of the Windine Courier. The Pelane Herald earns its money for Ralph Telane. " +
  "The presses of the Windine Courier stand in Nessburg. The Windine Courier goes back to 1777.";
const MILL =
  "The mill on the river Lenn was built by Ada Holt in 1871. It ground rye for the villages of the valley until the " +
  "flood of 1903 carried away its wheel. Her grandson Tom Holt turned it into a library, which opened in 1926.";

export const EXAMPLES = {
  ask: [
    { first: "Where is the Windine Courier printed?", second: PAPERS },
    { first: "How many fans does Traria United attract?", second: CLUBS },
    { first: "Who built the mill?", second: MILL },
    { first: "What colour do Soline Rovers wear?", second: CLUBS, note: "not in the passage" },
  ],
  pair: [
    { first: "A girl is playing the guitar on a bench.", second: "A young woman plays an instrument outside." },
    { first: "The train leaves at noon.", second: "Two dogs run across a field." },
  ],
  text: [
    { first: "A warm, funny and quietly brilliant film." },
    { first: "Two hours of noise in search of a story." },
    { first: "It begins slowly, and then you cannot look away." },
  ],
};
